"""What pydantic would do for a project by texts: set attributes, and ask its objects how values are checked."""

import pytest
from nat_demo import ANSWERS, CONFIG, FILES, INPUTS, REMOTE, SERVER, run_of
from test_hostile_nat_confined import in_a_run
from test_hostile_nat_hints import confined_answer

from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.judge.worker.read_reach import reaches

HEAD = """
from dataclasses import dataclass
from enum import Enum
from collections import namedtuple
from functools import partial, wraps
from typing import Annotated, Any, NamedTuple
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
    "a schema for JSON": "class K(BaseModel):\n    @classmethod\n"
    "    def __get_pydantic_json_schema__(*_):\n        return {}\nclass P(BaseModel):\n"
    "    x: K = K()\nP.model_json_schema()",
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


EQ = "    def __eq__(self, other):\n        return True\n"
HASHED = {
    "a hash of its own": f"class K:\n{EQ}    def __hash__(self):\n        return 1",
    "a hash of a dataclass": f"@dataclass(frozen=True)\nclass K:\n    y: int\n{EQ}",
    "a hash that is asked for": f"@dataclass(**{{'unsafe_' + 'hash': True}})\nclass K:\n    y: int\n{EQ}",
    "a hash of a model": f"class K(BaseModel, frozen=True):\n    y: int\n{EQ}",
    "a hash of a model above": f"class B(BaseModel, frozen=True):\n    y: int\nclass K(B):\n{EQ}    z: int = 1",
    "a hash of a model below": f"class B(BaseModel):\n{EQ}    y: int\nclass K(B, frozen=True): ...",
    "a hash of a named tuple": f"class K(NamedTuple):\n    y: int\n{EQ}",
    "a hash of one base": "@dataclass(eq=False, unsafe_hash=True)\nclass A:\n    y: int\n"
    f"class B:\n{EQ}class K(A, B): ...",
    "a partial": "def same(*_):\n    return True\n"
    "class K:\n    __eq__ = partial(same)\n    def __hash__(self):\n        return 1",
}


@pytest.mark.parametrize("name", HASHED)
def test_what_says_it_equals_another_has_no_hash(nat_toolkit: NatToolkit, name: str) -> None:
    answer = answer_of(nat_toolkit, HASHED[name])
    assert answer.startswith("held: "), answer


@pytest.mark.parametrize("hash_", ["def __hash__(self):\n        return 1", "__hash__ = int.__hash__", "del __hash__"])
def test_a_hash_that_is_written_is_named(hash_: str) -> None:
    assert reaches(f"class K:\n    {hash_}\n")
    assert reaches("class K:\n    __hash__ = None\n") == []


EQUAL = f"""
class A:
{EQ.rstrip()}
    __hash__ = None
class C(A): ...
@dataclass(frozen=True)
class D:
    y: int
class E(D): ...
class F(BaseModel, frozen=True):
    y: int = 1
class G(NamedTuple):
    y: int
class H(BaseModel):
{EQ.rstrip()}
    y: int = 1
class I(str, Enum):
    a = "a"
@dataclass
class J:
    y: int
{EQ.rstrip()}
return A() == C(), len({{D(1), D(1), E(1)}}), len({{F(), F()}}), {{G(1): 2}}[(1,)], H() == 1, {{I.a: 3}}["a"], J(1) == 2
"""


def test_ordinary_classes_are_equal_and_have_hashes(nat_toolkit: NatToolkit) -> None:
    assert answer_of(nat_toolkit, EQUAL) == "ran: (True, 2, 1, 2, True, 3, True)"


COPIES = """
one = M().model_copy(update={"y": 2}).model_copy(deep=True).model_copy()
two = Open(z=1).model_copy(update={"z": 3, "w": 4}, deep=True)
old = M(y=5).copy(update={"y": 6})
return one.y, old.y, sorted(two.model_dump().items()), RootModel[int](1).model_copy().model_dump()
"""


def test_an_ordinary_copy_has_other_values(nat_toolkit: NatToolkit) -> None:
    assert answer_of(nat_toolkit, COPIES) == "ran: (2, 6, [('w', 4), ('y', 1), ('z', 3)], 1)"


NAMED = """
home, kept = namedtuple("home", "a"), namedtuple("kept", "a b", defaults=[2])
def f(): ...
def g(): ...
class K:
    __module__ = "pydantic" + ".types"
homes = {wraps(each)(f).__module__ for each in (BaseModel, K, K(), home(1), print)} | {wraps(g)(f).__module__}
return homes | {home.__module__}, kept(1).b, wraps(g)(f).__name__
"""


def test_a_function_has_the_name_of_its_own_module(nat_toolkit: NatToolkit) -> None:
    assert answer_of(nat_toolkit, NAMED) == "ran: ({'nat_demo.logic'}, 2, 'g')"
    answer = answer_of(nat_toolkit, "return namedtuple('home', 'a', module='pydantic.types')")
    assert answer.startswith("held: "), answer


# ---------------------------------------------------------------- a server that a project has

TOOLS = """
from __future__ import annotations
import typing
from typing import Annotated
from pydantic import BaseModel, Field
class Row(BaseModel):
    unit: typing.Optional[str] = None
    size: Annotated[float, Field(gt=0)] = 1.0
class Source:
    size = 2.0
class Kind:
    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        return handler(int)
class Own(BaseModel):
    model_config = {"from_attributes": True}
    kind: Kind = 1
    size: float = 1.0
assert Row(unit="m").model_copy(update={"seen": 1}).unit == "m"
assert Own.model_validate(Source(), from_attributes=True).size == 2.0
"""


def test_the_server_of_a_confined_project_is_an_ordinary_program(nat_toolkit: NatToolkit) -> None:
    files = {
        **FILES,
        "src/nat_demo/configs/config.yml": CONFIG.replace("workflow:", f"{REMOTE}    include: [scaler]\nworkflow:"),
        "src/nat_demo/tools.py": TOOLS,
        "mcp_server.py": SERVER.replace("import scale", "import scale\nfrom nat_demo import tools"),
    }
    run = run_of([("remote__scaler", each) for each in INPUTS], through_client=True)
    built = nat_toolkit.run_agent(files, package="nat_demo", schemas=["scaler"], runs=[run], confined=True)
    assert (built.error, built.runs[0].answers) == (None, ANSWERS)
