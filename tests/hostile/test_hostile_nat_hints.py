"""Type hints that are texts: whatever evaluates them, they are no code; and ordinary ones mean what they say."""

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from nat_demo import ANSWERS, FILES, INPUTS, REGISTER, both_ways, run_of
from test_hostile_nat_confined import FUNCTION, in_a_run, run_confined

from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.judge.worker import hint_texts
from agent_rl.envs.nat.judge.worker.guard import OPEN
from agent_rl.envs.nat.judge.worker.read_reach import reaches, reaches_of_project

CALLS = "Annotated[int, len('a')]"
HEAD = f"""
import asyncio
import functools
from dataclasses import dataclass
from typing import Annotated, Any, Generic, List, Literal, NamedTuple, NewType, Optional, TypeVar
from typing_extensions import TypedDict
from nat.plugin_api import Builder, FunctionInfo
from pydantic import (
    AfterValidator, BaseModel, BeforeValidator, Field, RootModel, computed_field, conlist, field_serializer,
    field_validator, model_serializer,
)
TEXT = {CALLS!r}
T = TypeVar("T")
class Box(BaseModel, Generic[T]):
    x: T
class Named:
    def __getitem__(self, each):
        return int
    def __or__(self, each):
        return int
    def __hash__(self):
        return 1
own = Named()
def tried():
    try:
        return f"ran: {{made()}}"
    except ValueError as error:
        return f"{{type(error).__name__}}: {{error}}"
def made():
"""
ROUTES = {
    "a field": "class M(BaseModel):\n    x: TEXT = 1",
    "a list": "class M(BaseModel):\n    x: list[TEXT] = []",
    "a list of typing": "class M(BaseModel):\n    x: List[TEXT] = []",
    "a union": "class M(BaseModel):\n    x: Optional[TEXT] = None",
    "a deep one": "class M(BaseModel):\n    x: dict[str, list[tuple[TEXT, ...]]] = {}",
    "a text in a text": "class M(BaseModel):\n    x: 'list[\"TEXT\"]' = []",
    "a union with a type": "class M(BaseModel):\n    x: List[int] | TEXT = 1",
    "Annotated": "class M(BaseModel):\n    x: Annotated[TEXT, 1] = 1",
    "an f-string": "class M(BaseModel):\n    x: f'{TEXT}' = 1",
    "a str of its own": "class S(str): ...\nclass M(BaseModel):\n    x: S(TEXT) = 1",
    "a class that a decorator gives": "def give(_):\n    return TEXT\n@give\nclass K: ...\nclass M(BaseModel):\n"
    "    x: K = 1",
    "a constraint": "class M(BaseModel):\n    x: conlist(TEXT) = []",
    "a bound": "B = TypeVar('B', bound=TEXT)\nclass M(BaseModel, Generic[B]):\n    x: B",
    "a constraint of a variable": "B = TypeVar('B', int, TEXT)\nclass M(BaseModel, Generic[B]):\n    x: B",
    "a new type": "N = NewType('N', TEXT)\nclass M(BaseModel):\n    x: N = 1",
    "a typed dict": "class D(TypedDict):\n    x: TEXT\nclass M(BaseModel):\n    x: D",
    "a named tuple": "class D(NamedTuple):\n    x: TEXT\nclass M(BaseModel):\n    x: D",
    "a dataclass": "@dataclass\nclass D:\n    x: TEXT = 1\nclass M(BaseModel):\n    x: D",
    "a generic model": "Box[TEXT]",
    "a generic model in another": "Box[list[TEXT]]",
    "a root model": "RootModel[TEXT]",
    "a root model of a list": "RootModel[list[TEXT]](1)",
    "a root model with the real builtins": 'RootModel["__imp" + "ort__(\'os\').getpid()"]',
    "a computed field": "class M(BaseModel):\n    @computed_field(**{'return_' + 'type': TEXT})\n    def x(self): ...",
    "a computed field of a partial": "class M(BaseModel):\n"
    "    @functools.partial(computed_field, **{'return_' + 'type': TEXT})()\n    def x(self): ...",
    "a computed field's hint": "class M(BaseModel):\n    @computed_field\n    def x(self) -> TEXT: ...",
    "a serializer of a field": "class M(BaseModel):\n    x: int = 1\n"
    "    @field_serializer('x', **{'return_' + 'type': TEXT})\n    def f(self, x): ...",
    "a serializer of a model": "class M(BaseModel):\n    @model_serializer(**{'return_' + 'type': TEXT})\n"
    "    def f(self): ...",
    "a serializer's hint": "class M(BaseModel):\n    x: int = 1\n    @field_serializer('x')\n"
    "    def f(self, x) -> TEXT: ...",
    "a validator of a field": "class M(BaseModel):\n    x: int = 1\n"
    "    @field_validator('x', mode='before', **{'json_schema_' + 'input_type': TEXT})\n    def f(cls, x): ...",
    "a validator in a hint": "class M(BaseModel):\n    x: Annotated[int, BeforeValidator(str, TEXT)] = 1",
    "a function of the toolkit": "async def f(x: TEXT) -> str: ...\nFunctionInfo.from_fn(f)",
    "an answer of the toolkit": "async def f(x: int) -> TEXT: ...\nFunctionInfo.from_fn(f)",
    "a stream of the toolkit": "async def f(x: TEXT) -> str:\n    yield 1\nFunctionInfo.from_fn(f)",
    "an item of an object": "class M(BaseModel):\n    x: 'own[type]' = 1",
    "a union with an object": "class M(BaseModel):\n    x: 'own | type' = 1",
    "an object beside others": "class M(BaseModel):\n    x: 'Literal[own, Builder]' = 1",
    "a name of Python's": "class M(BaseModel):\n    x: '__buil' + 'tins__' = 1",
    "an attribute of Python's": "class M(BaseModel):\n    x: 'Builder.__mo' + 'dule__' = 1",
    "an attribute that is not open": "class M(BaseModel):\n    x: 'Builder.build' = 1",
    "a module": "class M(BaseModel):\n    x: 'asyncio' = 1",
    "a comprehension": "class M(BaseModel):\n    x: 'Literal[[0 for _ in [1]]]' = 1",
    "a function in a text": "class M(BaseModel):\n    x: 'Annotated[int, lambda: 1]' = 1",
    "a name that is given": "class M(BaseModel):\n    x: '(y := int)' = 1",
    "a name of the module that is set": "from nat_demo import logic\nlogic.Late = TEXT\n"
    "class M(BaseModel):\n    x: 'Late' = 1",
}
REFUSES = "HintError: "


def confined_answer(toolkit: NatToolkit, files: dict[str, str]) -> str:
    """What the tool answers in a run that no reader stood before."""
    files = {path: text for path, text in {**FILES, **files}.items() if path.startswith("src/")}
    built = toolkit.run_agent(files, package="nat_demo", schemas=["scaler"], runs=[both_ways()], confined=True)
    assert built.error is None
    return str(built.runs[0].answers[0])


@pytest.mark.parametrize("name", ROUTES)
def test_a_hint_that_is_a_text_is_no_code(nat_toolkit: NatToolkit, name: str) -> None:
    """Also where a reader would have refused the source: it cannot see what a text is when it is evaluated."""
    body = "".join(f"    {line}\n" for line in ROUTES[name].splitlines())
    answer = confined_answer(nat_toolkit, in_a_run(HEAD + body, "tried()"))
    assert answer.startswith(REFUSES), answer


WITH_CALLS = "Annotated[int, shown(1)]"
SHOWN = """
from typing import Annotated
from pydantic import BaseModel, RootModel
seen = []
def shown(each):
    seen.append(each)
    return each
def tried():
    try:
        made()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return f"ran: {seen}"
"""


@pytest.mark.parametrize(
    "model", ["class M(BaseModel):\n        x: list[text]", "RootModel[text]", "RootModel[list[text]]"]
)
def test_a_hint_that_was_judged_as_code_runs_in_its_own_module_alone(nat_toolkit: NatToolkit, model: str) -> None:
    judged = "from __future__ import annotations\nfrom typing import Annotated\nfrom nat_demo.later import shown\n"
    judged += f"def never(x: {WITH_CALLS}): ...\n"
    code = f"from nat_demo import judged\n{SHOWN}def made():\n    text = 'Annotated[int, ' + 'shown(1)]'\n    {model}\n"
    more = {"src/nat_demo/later.py": SHOWN, "src/nat_demo/judged.py": judged}
    assert confined_answer(nat_toolkit, {**in_a_run(code, "tried()"), **more}).startswith(REFUSES)


def test_a_class_of_a_module_that_could_not_be_imported_has_no_other_builtins(nat_toolkit: NatToolkit) -> None:
    """Its namespace is gone, so the toolkit takes an empty one, which Python fills with the real builtins."""
    broken = f"{SHOWN}\nfrom nat_demo import kept\ndef made():\n    class M(BaseModel):\n"
    broken += "        x: list['__imp' + 'ort__(\"os\").getpid()']\nkept.made = made\nraise RuntimeError\n"
    call = "from nat_demo import kept\ntry:\n    from nat_demo import broken\nexcept RuntimeError: ...\n"
    files = in_a_run(f"{SHOWN}\n{call}\ndef made():\n    kept.made()\n", "tried()")
    files |= {"src/nat_demo/broken.py": broken, "src/nat_demo/kept.py": "made = None\n"}
    assert confined_answer(nat_toolkit, files).startswith(REFUSES)


# ---------------------------------------------------------------- what a reader refuses

IMPORTS = "from typing import *\n".replace("*", "Annotated, Literal") + (
    "from pydantic import BaseModel, BeforeValidator, RootModel, computed_field, field_serializer, field_validator\n"
)
TEXTS = {
    "a call in Annotated": "def f(x: 'Annotated[str, (lambda b: b)(1)]'): ...",
    "a call in Annotated of a list": "def f(x: list['Annotated[int, print()]']): ...",
    "a call in Annotated by another name": "A = Annotated\ndef f(x: 'A[str, print()]'): ...",
    "a walk in Literal": "def f(x: 'Literal[[0 for _ in [print()]].real]'): ...",
    "a call in Literal": "def f(x: 'Literal[print().real]'): ...",
    "a call in a constraint": "from pydantic import conlist\ndef f(x: 'list[conlist(int, min_length=print())]'): ...",
    "a call in a subscript": "def f(x: 'list[int][print()]'): ...",
    "a call in a return type": "def f() -> 'Annotated[str, print()]': ...",
    "a call in a typed dict": "from typing import TypedDict\nclass D(TypedDict):\n    x: 'Annotated[str, print()]'",
    "a call in a base": "class M(RootModel['Annotated[str, print()]']): ...",
    "a call in a root model": "M = RootModel['Annotated[str, print()]']",
    "a call in a model of a name": "T = 'pri' + 'nt()'\nRootModel[T]",
    "a name of Python's": "def f(x: 'Literal[__name__]'): ...",
    "an attribute of Python's": "def f(x: 'Annotated[int, BaseModel.__doc__]'): ...",
    "keywords of a computed field": "HOW = {}\ncomputed_field(**HOW)",
    "keywords of a serializer": "HOW = {}\nfield_serializer('x', **HOW)",
    "keywords of a validator": "HOW = {}\nfield_validator('x', **HOW)",
    "keywords of a validator in a hint": "HOW = {}\nBeforeValidator(str, **HOW)",
    "arguments of a validator in a hint": "HOW = []\nBeforeValidator(*HOW)",
    "an input type": "field_validator('x', json_schema_input_type='print()')",
    "an input type of a name": "T = 'pri' + 'nt()'\nBeforeValidator(str, json_schema_input_type=T)",
    "an input type by its place": "BeforeValidator(str, 'print()')",
    "a class that a decorator gives": "def give(_):\n    return 'print()'\n@give\nclass K: ...\ndef f(x: K): ...",
    "hints by their dict": "class M:\n    __annotations__ = {}",
    "hints in their dict": "class M:\n    x: int\n    __annotations__['x'] = 'print()'",
    "hints added to their dict": "class M:\n    x: int\n    __annotations__ |= {'x': 'print()'}",
    "hints of a function": "def f(): ...\nf.__annotations__ = {}",
    "hints by locals": "class M:\n    locals()['__annot' + 'ations__'] = {}",
    "hints by vars": "class M:\n    vars()['__annot' + 'ations__'] = {}",
    "what a generic model is made of": "class M(BaseModel):\n    @classmethod\n"
    "    def model_parametrized_name(cls, params): ...",
    "what a generic model is made of, later": "class M(BaseModel): ...\nM.model_parametrized_name = classmethod(print)",
    "a hint evaluated late": "from typing import ForwardRef",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_more_than_a_type_is_named(name: str) -> None:
    assert reaches(IMPORTS) == []
    assert reaches(IMPORTS + TEXTS[name]), TEXTS[name]


def test_what_another_module_is_given_is_named() -> None:
    sources = {"a/__init__.py": "", "a/logic.py": "T = int\ndef f(x: T): ...\n"}
    register = "from a import logic\nlogic.T = 'pri' + 'nt()'\n"
    assert reaches_of_project({**sources, "a/register.py": "from a import logic\nlogic.T\n"}) == []
    assert reaches_of_project({**sources, "a/register.py": register})


# ---------------------------------------------------------------- ordinary hints

HINTED = '''
import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, ClassVar, Generic, List, Literal, NamedTuple, NewType, Optional, TypeVar
import typing
from typing_extensions import TypedDict
from pydantic import (
    AfterValidator, BaseModel, BeforeValidator, Field, RootModel, StringConstraints, computed_field, conlist,
    field_serializer, field_validator,
)
T = TypeVar("T", bound="Unit")
Name = NewType("Name", str)
Factor = Annotated[float, Field(gt=0, description="How many.")]
class Kind(str, Enum):
    METRE = "m"
    KILO = "km"
def stripped(text: str) -> str:
    return text.strip()
class Row(TypedDict, total=False):
    unit: "Kind"
    factor: typing.Optional["float"]
class Pair(NamedTuple):
    first: "Unit"
    second: "int | None" = None
class Unit(BaseModel):
    known: ClassVar[dict[str, "Unit"]] = {}
    seen: typing.ClassVar["list[int]"] = []
    name: Annotated[str, StringConstraints(min_length=1), AfterValidator(stripped), BeforeValidator(lambda x: x)]
    factor: Factor = 1.0
    made: "dt.date" = Field(default_factory=lambda: dt.date(2024, 2, 29))
    kind: Literal[Kind.METRE, "km"] = Kind.METRE
    parent: Optional["Unit"] = None
    others: "List[Unit]" = []
    tags: Annotated[conlist(str, max_length=3), Field(description="Tags.")] = []
    sign: "Literal[-1, 1]" = 1
    call: "Callable[[int], str] | None" = None
    @field_validator("factor", mode="before", json_schema_input_type=float)
    @classmethod
    def plain(cls, value: Any) -> "Any":
        return value
    @computed_field
    @property
    def double(self) -> "float":
        return self.factor * 2
    @field_serializer("factor", return_type=float)
    def shown(self, value: float) -> float:
        return value
class Box(BaseModel, Generic[T]):
    of: T
    pair: "Pair | None" = None
    row: Row = {}
class Units(RootModel[dict[str, Unit]]):
    """Units by name."""
@dataclass
class Length:
    value: float
    unit: "Unit"
    notes: "list[str]" = field(default_factory=list, init=False)
    count: ClassVar[int] = 0
    total: typing.ClassVar[int] = 0
class Lengths(BaseModel):
    each: "list[Length]" = []
FUNCTION
    units = {"m": Unit(name="m"), "km": Unit(name="km ", factor=1000.0, kind="km")}
    assert Units(units).model_dump()["km"]["name"] == "km"
    if unit not in units:
        return f"error: unknown unit {unit}"
    box = Box[Unit](of=units[unit], pair=(units["m"], 1), row={"unit": "km", "factor": 2})
    listed = Lengths(each=[{"value": value, "unit": units[unit]}])
    assert RootModel[list[int]]([1, "2"]).model_dump() == [1, 2] and box.row["unit"] is Kind.KILO and box.of.double
    assert box.pair.first.made == dt.date(2024, 2, 29) and box.of.model_dump()["factor"] == box.of.factor
    return f"{listed.each[0].value * box.of.factor:.{digits}f} m"
'''


@pytest.fixture
def held() -> Iterator[None]:
    """This process, as one with a project whose objects open nothing."""
    hint_texts.hold({}, {OPEN: lambda *_: None})
    yield
    hint_texts.let_go()


@pytest.mark.parametrize(
    ("function", "name", "default"),
    [([].index, "stop", sys.maxsize), (().index, "stop", sys.maxsize), (hashlib.blake2b, "digest_size", 64)],
)
def test_a_function_written_in_c_says_its_defaults(
    held: None, function: Callable[..., Any], name: str, default: int
) -> None:
    assert inspect.signature(function).parameters[name].default == default


@pytest.mark.parametrize("text", ["sys.path", "sys.modules", "sys", "agent_rl.__doc__", "pytest.version_tuple", "len"])
def test_defaults_are_plain_constants_of_python(held: None, text: str) -> None:
    kind = type("K", (), {"__doc__": f"K(a={text})\n--\n\n"})
    with pytest.raises(ValueError):
        inspect.signature(kind)


def test_letting_go_of_nothing_does_nothing() -> None:
    hint_texts.let_go()
    assert inspect.signature(len, eval_str=True)


@pytest.mark.parametrize("late", [False, True])
def test_ordinary_hints_reach_for_nothing_and_mean_what_they_say(nat_toolkit: NatToolkit, late: bool) -> None:
    head = "from __future__ import annotations\n" * late
    hint = "Name | str" if late else '"Name | str"'
    register = REGISTER.replace("unit: str)", f"unit: {hint})").replace("import scale", "import Name, scale")
    assert hint in register
    files = {
        "src/nat_demo/logic.py": head + HINTED.replace("FUNCTION\n", f"{FUNCTION}\n"),
        "src/nat_demo/register.py": head + register,
    }
    evidence = run_confined(nat_toolkit, files, run_of([("scaler", each) for each in INPUTS]))
    assert (evidence.error, evidence.runs[0].answers) == (None, ANSWERS)
