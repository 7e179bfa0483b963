"""What pydantic would do for a project by texts: set attributes, and ask its objects how values are checked."""

import pytest
from test_hostile_nat_confined import in_a_run
from test_hostile_nat_hints import confined_answer

from agent_rl.envs.nat.judge.toolkit import NatToolkit

HEAD = """
from dataclasses import dataclass
from typing import Annotated, Any
from pydantic import BaseModel, ConfigDict, RootModel
class M(BaseModel):
    y: int = 1
class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    y: int = 1
class Text(str): ...
def tried():
    try:
        return f"ran: {made()}"
    except TypeError as error:
        return f"held: {error}"
def made():
"""
HELD = {
    "an attribute by a copy": "return M().model_copy(update={'__get_pydantic_core_' + 'schema__': 1})",
    "a method by a copy": "return M().model_copy(update={'model_dump': 1})",
    "an attribute by an old copy": "return M().copy(update={'__get_pydantic_core_' + 'schema__': 1})",
    "an attribute by a text of its own": "return M().model_copy(update={Text('y'): 1})",
    "a schema by a class": "class K:\n    def __get_pydantic_core_schema__(*_):\n        return {'type': 'any'}\n"
    "class P(BaseModel):\n    x: K = 1",
    "a schema by a method of the class": "class K(BaseModel):\n    @classmethod\n"
    "    def __get_pydantic_core_schema__(*_):\n        return {'type': 'any'}",
    "a schema by an object in a hint": "class K:\n    def __get_pydantic_core_schema__(*_):\n"
    "        return {'type': 'any'}\nclass P(BaseModel):\n    x: Annotated[Any, K()] = 1",
    "a schema that an object holds": "class K: ...\nk = K()\n"
    "k.__get_pydantic_core_schema__ = lambda *_: {'type': 'any'}\nclass P(BaseModel):\n    x: Annotated[Any, k] = 1",
    "a schema by a class with another's name": "class K:\n    __module__ = 'pydantic.types'\n"
    "    __qualname__ = 'SecretStr'\n    def __get_pydantic_core_schema__(*_):\n        return {'type': 'any'}\n"
    "class P(BaseModel):\n    x: K = 1",
    "a schema of a dataclass": "@dataclass\nclass K:\n    y: int = 1\n"
    "    __pydantic_core_schema__ = {'type': 'any'}\nclass P(BaseModel):\n    x: K = None",
    "a schema for JSON": "class K(BaseModel):\n    @classmethod\n    def __get_pydantic_json_schema__(*_):\n        return {}\n"
    "class P(BaseModel):\n    x: K = K()\nP.model_json_schema()",
    "a validator by a class": "class K:\n    def __get_validators__():\n        yield str\n"
    "class P(BaseModel):\n    x: K = 1",
    "an attribute by a copy of an open model": "return Open().model_copy(update={'__any' + '__': 1})",
}


def answer_of(toolkit: NatToolkit, body: str) -> str:
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    return confined_answer(toolkit, in_a_run(HEAD + indented, "tried()"))


@pytest.mark.parametrize("name", HELD)
def test_pydantic_does_not_do_it_for_a_project(nat_toolkit: NatToolkit, name: str) -> None:
    answer = answer_of(nat_toolkit, HELD[name])
    assert answer.startswith("held: "), answer


COPIES = """
one = M().model_copy(update={"y": 2}).model_copy(deep=True).model_copy()
two = Open(z=1).model_copy(update={"z": 3, "w": 4}, deep=True)
old = M(y=5).copy(update={"y": 6})
return one.y, old.y, sorted(two.model_dump().items()), RootModel[int](1).model_copy().model_dump()
"""


def test_an_ordinary_copy_has_other_values(nat_toolkit: NatToolkit) -> None:
    assert answer_of(nat_toolkit, COPIES) == "ran: (2, 6, [('w', 4), ('y', 1), ('z', 3)], 1)"
