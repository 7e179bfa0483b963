"""What no reader sees in a project's text, held while the code runs; and ordinary code that must run as it is."""

from typing import Any

import pytest
from nat_demo import ANSWERS, CONFIG, FILES, INPUTS, LOGIC, REGISTER, REMOTE, both_ways, run_of

from agent_rl.envs.nat.judge.evidence import AgentEvidence
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.judge.worker.read_reach import reaches_of_project


def run_confined(toolkit: NatToolkit, files: dict[str, str], *runs: dict[str, Any]) -> AgentEvidence:
    """The demo with other files, as a project whose text reaches for nothing is run."""
    files = {path: text for path, text in {**FILES, **files}.items() if path.startswith("src/")}
    sources = {path.removeprefix("src/"): text for path, text in files.items() if path.endswith(".py")}
    assert reaches_of_project(sources) == []
    return toolkit.run_agent(files, package="nat_demo", schemas=["scaler"], runs=runs or [both_ways()], confined=True)


# ---------------------------------------------------------------- what a text does not show

PEEK = """
from typing import Any
from pydantic import BaseModel, Field
class Peek(BaseModel):
    got: Any = Field(validation_alias="__get" + "attribute__")
"""
ATTEMPTS = {
    "self is the builder, set": ("class C:\n    def put(self, v):\n        self.build = v", "C.put(it, 1)"),
    "self is the builder, read": (
        "class C:\n    _workflow_builder = 1\n    def look(self):\n        return self._workflow_builder",
        "C.look(it)",
    ),
    "self is the builder's class, set": (
        "class C:\n    def put(self, v):\n        self.build = v",
        "C.put(Builder, 1)",
    ),
    "a class of the toolkit as an argument": ("def put(each, v):\n    each.description = v", "put(FunctionInfo, 1)"),
    "a class of the toolkit, deleted from": ("def drop(each):\n    del each.create", "drop(FunctionInfo)"),
    "a builtin of a module": ("def put(each, v):\n    each.isinstance = v", "put(logic, 1)"),
    "a class of others in a module": (
        "from enum import Enum\ndef put(each, v):\n    each.Enum = v",
        "put(logic, scale)",
    ),
    "a loop over the toolkit": ("def put(each):\n    for each.extra in [1]: ...", "put(Builder)"),
    "a logger of the toolkit": (
        "from logging import getLogger\ndef put(each):\n    each.info = print",
        'put(getLogger("nat.builder.function"))',
    ),
    "a function of the toolkit": ("def put(each):\n    each.extra = 1", "put(register_function)"),
    "a function of a module": ("from json import dumps\ndef put(each):\n    each.extra = 1", "put(dumps)"),
    "a module that another hands on": (
        "import json\nclass scanner: ...",
        "logic.json.scanner",
    ),
    "wraps as a writer": (
        "from functools import wraps\ndef fake(): ...\nfake.build = 1\ndef put(each):\n    return wraps(fake)(each)",
        "put(it)",
    ),
    "a dataclass of the toolkit's": ("from dataclasses import dataclass", "dataclass(Builder)"),
    "an order on the toolkit's": ("from functools import total_ordering", "total_ordering(Builder)"),
    "a format in an argument": (
        "def show(text, each):\n    return text.format(each)",
        'show("{0.__glo" + "bals__}", scale)',
    ),
    "a format in a format": (
        "def show(text, each):\n    return text.format(each, 1)",
        'show("{1:{0.__cla" + "ss__}}", scale)',
    ),
    "a format of a text of its own": (
        "class S(str): ...\ndef show(text, each):\n    return text.format(each)",
        'show(S("{0.__glo" + "bals__}"), scale)',
    ),
    "a class registered as another": (
        "from abc import ABC\nclass A(ABC): ...\ndef register(): ...\ndef put(each, other):\n    each.register(other)",
        "put(A, Builder)",
    ),
    "a builder behind the builder": ("def sync_builder(): ...", "it.sync_builder"),
    "a task's frames": ("def get_stack(): ...\nasync def f(): ...", "asyncio.create_task(f()).get_stack()"),
    "a model's own insides": (
        "from pydantic import BaseModel\nclass M(BaseModel):\n    x: int = 1\ndef model_parametrized_name(): ...",
        "M.model_parametrized_name",
    ),
    "a super's insides": (
        "from pydantic import BaseModel\nclass M(BaseModel):\n    x: int = 1\n    def f(self):\n"
        "        return super()._copy_and_set_values\ndef _copy_and_set_values(): ...",
        "M().f()",
    ),
    "a model made of attributes": (PEEK, "Peek.model_validate(Builder, from_attributes=True).got"),
    "a model of a model made of attributes": (
        f"{PEEK}from pydantic import RootModel\nclass Root(RootModel[Peek]): ...\n",
        "Root.model_validate(Builder, from_attributes=True).model_dump()",
    ),
    "a model made of attributes by a partial": (
        f"{PEEK}from functools import partial\ndef peek(each):\n"
        "    return partial(Peek.model_validate, **{'from_' + 'attributes': True})(each).got",
        "peek(Builder)",
    ),
    "wraps as a reader": (
        "from functools import wraps\nclass Some:\n    _workflow_builder = 1\n"
        "def look(each):\n    def fake(): ...\n    return wraps(each)(fake)._workflow_builder",
        "look(it)",
    ),
    "a copy's memo": (
        "from copy import deepcopy\ndef look(each):\n    seen = {}\n    try:\n        deepcopy(each, seen)\n"
        "    except TypeError:\n        if not seen:\n            raise\n    return seen",
        "look(it)",
    ),
    "a dataclass of others, taken apart": (
        "from dataclasses import astuple\nfrom pydantic import StringConstraints\n"
        "def look():\n    return astuple(StringConstraints())",
        "look()",
    ),
}
LOOK = '''
    try:
        found = "got " + str(ATTEMPT)
    except (AttributeError, TypeError) as error:
        found = f"held: {error}"

    async def run(value: float, unit: str) -> str:
        """Convert a length to metres."""
        return found
'''


@pytest.mark.parametrize("name", ATTEMPTS)
def test_what_a_text_does_not_show_is_held_while_it_runs(nat_toolkit: NatToolkit, name: str) -> None:
    code, attempt = ATTEMPTS[name]
    head, tail = REGISTER.split("\n    async def run", 1)
    tail = tail[tail.index("    yield") :]
    register = head.replace("_builder: Builder", "it: Builder") + LOOK.replace("ATTEMPT", attempt) + "\n" + tail
    defined = [line.split()[1].split("(")[0].rstrip(":") for line in code.splitlines() if line[:4] in ("def ", "clas")]
    defined += [line.split()[-1] for line in code.splitlines() if line.startswith("from ") and "pydantic" not in line]
    imports = (
        f"import asyncio\nfrom nat_demo import logic\nfrom nat_demo.logic import {', '.join({*defined, 'scale'})}\n"
    )
    imports += "from nat_demo.logic import f\n" if "async def f" in code else ""
    register = register.replace("from nat_demo.logic import scale\n", imports)
    files = {"src/nat_demo/register.py": register, "src/nat_demo/logic.py": f"{LOGIC}\n\n{code}\n"}
    evidence = run_confined(nat_toolkit, files)
    assert evidence.error is None
    assert str(evidence.runs[0].answers[0]).startswith("held: "), evidence.runs[0].answers[0]


def test_a_file_that_is_written_over_later_changes_nothing(nat_toolkit: NatToolkit) -> None:
    """A server that the configuration starts may write to the project's folder while the workflow runs."""
    server = (
        "import pathlib\npathlib.Path('src/nat_demo/late.py').write_text('def scale(*_):\\n    return \"forged\"\\n')\n"
    )
    config = CONFIG.replace("workflow:", f"{REMOTE}workflow:")
    register = REGISTER.replace("from nat_demo.logic import scale\n", "").replace(
        "        return scale(", "        from nat_demo.late import scale\n\n        return scale("
    )
    files = {**FILES, "src/nat_demo/register.py": register, "src/nat_demo/late.py": LOGIC, "mcp_server.py": server}
    files["mcp_server.py"] = server + FILES["mcp_server.py"]
    files["src/nat_demo/configs/config.yml"] = config
    evidence = nat_toolkit.run_agent(files, package="nat_demo", schemas=["scaler"], runs=[both_ways()], confined=True)
    assert (evidence.error, evidence.runs[0].answers[:3]) == (None, ANSWERS)


LOGS = """
import logging
class Sink:
    def __init__(self):
        self.text = ""
    def write(self, text):
        self.text += text
    def flush(self): ...
def look(form):
    sink = Sink()
    logging.basicConfig(format=form, style="{", stream=sink, force=True)
    try:
        raise ValueError
    except ValueError:
        logging.getLogger("x").log(60, "m", exc_info=True)
    return sink.text
def write(path, text):
    logging.basicConfig(filename=path, filemode="w", format="%(message)s", force=True)
    logging.getLogger("x").log(60, text)
    with_file = logging.getLogger("x").isEnabledFor(60)
    return f"{with_file}"
"""


def in_a_run(code: str, call: str) -> dict[str, str]:
    """The demo with more logic, of which a tool answers with what `call` gives."""
    register = REGISTER.replace("import scale", f"import scale, {call.partition('(')[0]}")
    register = register.replace("return scale(value, unit, config.digits)", f"return str({call})")
    return {"src/nat_demo/logic.py": f"{LOGIC}\n{code}", "src/nat_demo/register.py": register}


@pytest.mark.parametrize("path", ["nat/builder/function_info.py", "nat/__init__.py", "pydantic/main.py"])
def test_a_file_named_as_a_module_that_is_there_makes_nobodys_classes_the_projects(
    nat_toolkit: NatToolkit, path: str
) -> None:
    code = (
        "from nat.builder.function_info import FunctionInfo\nfrom pydantic import BaseModel\n"
        "def put(each):\n    each.description = 1\n"
        "def go():\n    for each in (FunctionInfo, BaseModel):\n        try:\n            put(each)\n"
        "        except AttributeError:\n            continue\n        return 'changed'\n    return 'held'\n"
    )
    evidence = run_confined(nat_toolkit, {**in_a_run(code, "go()"), f"src/{path}": ""})
    assert (evidence.error, evidence.runs[0].answers[0]) == (None, "held")


def test_the_format_of_a_log_asks_for_no_attribute(nat_toolkit: NatToolkit) -> None:
    form = "{exc_info[2].tb_frame.f_lineno}"
    evidence = run_confined(nat_toolkit, in_a_run(LOGS, f"look({form!r})"))
    assert (evidence.error, evidence.runs[0].answers[0]) == (None, "")


def test_a_log_writes_no_file_and_no_file_of_a_project_is_what_others_import_late(nat_toolkit: NatToolkit) -> None:
    """`h2` is a package that httpx imports when it is asked for it, and that is not installed."""
    code = (
        f"{LOGS}\nimport httpx\ndef late(folder):\n    write(f'{{folder}}h2.py', 'HERE = 1')\n"
        "    try:\n        httpx.AsyncClient(http2=True)\n    except ImportError as error:\n        return f'{error}'\n"
        "    return 'imported'\n"
    )
    for folder in ("src/", ""):
        evidence = run_confined(nat_toolkit, in_a_run(code, f"late({folder!r})"))
        assert (evidence.error, "not installed" in str(evidence.runs[0].answers[0])) == (None, True)
    ready = {"src/h2/__init__.py": "", **in_a_run(code, "late('other_')")}
    evidence = run_confined(nat_toolkit, ready)
    assert (evidence.error, "not installed" in str(evidence.runs[0].answers[0])) == (None, True)


def test_a_configuration_that_is_written_over_later_changes_nothing(nat_toolkit: NatToolkit) -> None:
    server = (
        "import pathlib\npath = pathlib.Path('src/nat_demo/configs/config.yml')\n"
        "path.write_text(path.read_text().replace('demo_scale', 'forged'))\n"
    )
    files = {**FILES, "mcp_server.py": server + FILES["mcp_server.py"]}
    files["src/nat_demo/configs/config.yml"] = REMOTE + CONFIG
    runs = [both_ways(), both_ways()]
    evidence = nat_toolkit.run_agent(files, package="nat_demo", schemas=["scaler"], runs=runs, confined=True)
    assert (evidence.error, [each.answers[:3] for each in evidence.runs]) == (None, [ANSWERS, ANSWERS])


# ---------------------------------------------------------------- ordinary code

FUNCTION = "def scale(value: float, unit: str, digits: int = 2) -> str:"
LOGICS = {
    "logging": """
import logging
logger = logging.getLogger(__name__)
logger.propagate = False
logger.setLevel(logging.WARNING)
FUNCTION
    logger.debug("scaling %s %s", value, unit)
    if unit not in ("m", "km"):
        logger.warning("unknown unit %r", unit)
        return f"error: unknown unit {unit}"
    return f"{value * (1000.0 if unit == 'km' else 1.0):.{digits}f} m"
""",
    "a dataclass": """
from __future__ import annotations
from dataclasses import asdict, dataclass, field, replace
@dataclass(frozen=True, slots=True, order=True)
class Unit:
    name: str
    factor: float = 1.0
    tags: list[str] = field(default_factory=list, compare=False)
    def bigger(self, by: float) -> Unit:
        return replace(self, factor=self.factor * by)
UNITS = {each.name: each for each in (Unit("m"), Unit("km").bigger(1000.0))}
FUNCTION
    unit_ = UNITS.get(unit)
    if unit_ is None:
        return f"error: unknown unit {unit}"
    return f"{value * asdict(unit_)['factor']:.{digits}f} m"
""",
    "an enumeration": """
from enum import Enum, IntEnum, auto, unique
@unique
class Unit(str, Enum):
    METRE = "m"
    KILOMETRE = "km"
    @property
    def factor(self) -> float:
        return 1000.0 if self is Unit.KILOMETRE else 1.0
class Level(IntEnum):
    LOW = auto()
    HIGH = auto()
FUNCTION
    try:
        known = Unit(unit)
    except ValueError:
        return f"error: unknown unit {unit}"
    assert [each.value for each in Level] == [1, 2] and known.name in Unit.__members__
    return f"{value * known.factor:.{digits}f} m"
""",
    "a cache": """
from functools import lru_cache
@lru_cache(maxsize=32)
def factor_of(unit: str) -> float:
    \"\"\"Metres in a unit.\"\"\"
    return {"m": 1.0, "km": 1000.0}[unit]
FUNCTION
    try:
        return f"{value * factor_of(unit):.{digits}f} m"
    except KeyError as error:
        return f"error: unknown unit {error.args[0]}"
""",
    "a regular expression": r"""
import re
_UNIT = re.compile(r"(?P<prefix>k?)m", re.IGNORECASE)
FUNCTION
    if not (found := _UNIT.fullmatch(unit)):
        return f"error: unknown unit {unit}"
    return f"{value * (1000.0 if found.group('prefix') else 1.0):.{digits}f} m"
""",
    "match": """
FUNCTION
    match (unit, value):
        case ("km", float(number)):
            factor = 1000.0
        case ("m", _):
            factor = 1.0
        case _:
            return f"error: unknown unit {unit}"
    return f"{value * factor:,.{digits}f} m".replace(",", "")
""",
    "a match of classes": """
from dataclasses import dataclass
from enum import Enum
class Kind(Enum):
    SHORT = "m"
    LONG = "km"
@dataclass
class Length:
    value: float
    kind: Kind
def metres(length: Length) -> float:
    match length:
        case Length(value=number, kind=Kind.LONG):
            return number * 1000.0
        case Length(number, Kind.SHORT):
            return number
    raise ValueError(length)
FUNCTION
    if unit not in {each.value for each in Kind}:
        return f"error: unknown unit {unit}"
    return f"{metres(Length(value, Kind(unit))):.{digits}f} m"
""",
    "decimal": """
from decimal import ROUND_HALF_EVEN, Decimal, getcontext, localcontext
from typing import Final
getcontext().prec = 40
FACTORS: Final[dict[str, Decimal]] = {"m": Decimal(1), "km": Decimal("1e3")}
FUNCTION
    if (factor := FACTORS.get(unit)) is None:
        return "error: unknown unit %s" % unit
    with localcontext() as context:
        context.rounding = ROUND_HALF_EVEN
        total = Decimal(str(value)) * factor
    return "{} m".format(total.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_EVEN))
""",
    "an exception of its own": """
class UnitError(ValueError):
    \"\"\"An unknown unit.\"\"\"
    def __init__(self, unit: str) -> None:
        super().__init__(f"unknown unit {unit}")
        self.unit = unit
def _factor(unit: str) -> float:
    if unit not in ("m", "km"):
        raise UnitError(unit)
    return 1000.0 if unit == "km" else 1.0
FUNCTION
    try:
        return f"{value * _factor(unit):.{digits}f} m"
    except UnitError as e:
        assert type(e).__name__ == "UnitError" and e.unit == unit and isinstance(e, ValueError)
        return "error: " + str(e)
""",
    "a class with operators": """
from functools import cached_property, total_ordering
@total_ordering
class Length:
    \"\"\"So many metres.\"\"\"
    count = 0
    def __init__(self, metres: float) -> None:
        self._metres = metres
        self.__seen = 0
        Length.count += 1
    @property
    def metres(self) -> float:
        self.__seen += 1
        return self._metres
    @metres.setter
    def metres(self, value: float) -> None:
        self._metres = value
    @classmethod
    def of(cls, value: float, factor: float) -> "Length":
        made = cls(0.0)
        made.metres = value * factor
        return made
    @staticmethod
    def zero() -> "Length":
        return Length(0.0)
    @cached_property
    def rounded(self) -> float:
        return round(self._metres, 6)
    def __add__(self, other: "Length") -> "Length":
        return Length(self._metres + other._metres)
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Length) and self._metres == other._metres
    def __lt__(self, other: "Length") -> bool:
        return self._metres < other._metres
    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self._metres!r})"
FUNCTION
    if unit not in ("m", "km"):
        return f"error: unknown unit {unit}"
    length = Length.of(value, 1000.0 if unit == "km" else 1.0) + Length.zero()
    assert sorted([length, Length.zero()], key=lambda each: -each.metres)[0] >= Length.zero() and repr(length)
    return f"{length.rounded:.{digits}f} m"
""",
    "a decorator": """
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar
""".replace(", ParamSpec", "")
    + """
T = TypeVar("T", bound=Callable[..., Any])
def checked(function: T) -> T:
    \"\"\"Refuse unknown units.\"\"\"
    @functools.wraps(function)
    def wrapper(value: float, unit: str, digits: int = 2) -> str:
        if unit not in ("m", "km"):
            return f"error: unknown unit {unit}"
        return function(value, unit, digits)
    return wrapper
@checked
FUNCTION
    return f"{value * {'m': 1.0}.get(unit, 1000.0):.{digits}f} m"
""",
    "a model": """
from typing import Annotated, Literal, Optional
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
class Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    value: Annotated[float, Field(description="How many.")]
    unit: Literal["m", "km"]
    note: Optional[str] = None
    @field_validator("value")
    @classmethod
    def finite(cls, value: float) -> float:
        if value != value:
            raise ValueError("not a number")
        return value
    @property
    def metres(self) -> float:
        return self.value * (1000.0 if self.unit == "km" else 1.0)
FUNCTION
    try:
        request = Request.model_validate({"value": value, "unit": unit})
    except ValidationError as error:
        return f"error: unknown unit {error.errors()[0]['input']}"
    return f"{request.metres:.{digits}f} m" if request.model_dump()["note"] is None else ""
""",
    "a named tuple": """
from collections import namedtuple
from typing import NamedTuple, TypedDict
class Unit(NamedTuple):
    name: str
    factor: float = 1.0
class Row(TypedDict, total=False):
    unit: str
Pair = namedtuple("Pair", ["first", "second"])
UNITS = (Unit("m"), Unit("km")._replace(factor=1000.0))
FUNCTION
    row: Row = {"unit": unit}
    pair = Pair(first=next((each for each in UNITS if each.name == row["unit"]), None), second=0)
    if pair.first is None:
        return f"error: unknown unit {unit}"
    return f"{value * pair.first.factor:.{digits}f} m"
""",
    "dates and JSON": """
import datetime as dt
import json
import math
from collections import Counter, defaultdict, deque
from itertools import chain
from urllib.parse import quote
FUNCTION
    table = json.loads('{"m": 1, "km": 1000}')
    seen: defaultdict[str, list[int]] = defaultdict(list)
    for key, number in chain(table.items()):
        seen[key].append(number)
    assert dt.datetime.strptime("2024-02-29", "%Y-%m-%d").date() == dt.date(2024, 2, 29)
    assert dt.date(2024, 2, 29).isocalendar().week == 9 and quote("a b") == "a%20b"
    assert Counter("aab").most_common(1)[0][0] == "a" and deque([1]).pop() == 1
    try:
        json.loads("{")
    except json.JSONDecodeError as error:
        assert error.msg and error.pos
    if unit not in seen:
        return f"error: unknown unit {unit}"
    return f"{math.fsum([value * seen[unit][0]]):.{digits}f} m"
""",
    "an abstract class": """
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, Protocol, TypeVar
T = TypeVar("T", int, float)
class Factor(ABC, Generic[T]):
    known: ClassVar[dict[str, "type[Factor]"]] = {}
    @abstractmethod
    def get(self) -> T: ...
class HasGet(Protocol):
    def get(self) -> float: ...
class One(Factor[float]):
    def get(self) -> float:
        return 1.0
class Kilo(One):
    def get(self) -> float:
        return super().get() * 1000.0
FACTORS: dict[str, type[One]] = {"m": One, "km": Kilo}
def times(value: float, factor: HasGet) -> float:
    return value * factor.get()
FUNCTION
    kind = FACTORS.get(unit)
    return f"{times(value, kind()):.{digits}f} m" if kind else f"error: unknown unit {unit}"
""",
    "templates and text": """
import string
import textwrap
MESSAGES = {"unknown": "error: unknown unit {unit}"}
TEMPLATE = "{value:.{digits}f} {unit}"
FUNCTION
    allowed = set(string.ascii_lowercase)
    words = textwrap.dedent(unit).strip().translate(str.maketrans({"é": "e"}))
    if not all(map(allowed.__contains__, words)) or words not in ("m", "km"):
        return MESSAGES["unknown"].format(unit=unit)
    return TEMPLATE.format(value=value * (1000.0 if words == "km" else 1.0), digits=digits, unit="m")
""".replace("map(allowed.__contains__, words)", "each in allowed for each in words"),
}
REGISTERS = {
    "an input model": """
from collections.abc import AsyncGenerator
import logging
from pydantic import BaseModel, Field
from nat.builder.builder import Builder
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_function
from nat.data_models.function import FunctionBaseConfig
from nat_demo.logic import scale
logger = logging.getLogger(__name__)
class ScaleInput(BaseModel):
    value: float = Field(description="How many.")
    unit: str = Field(description="Of what.")
class ToolConfig(FunctionBaseConfig, name="demo_scale"):
    digits: int = Field(default=2, ge=0, le=6, description="Digits kept.")
@register_function(config_type=ToolConfig)
async def tool(config: ToolConfig, builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    async def run(data: ScaleInput) -> str:
        return scale(data.value, data.unit, config.digits)
    try:
        yield FunctionInfo.from_fn(run, input_schema=ScaleInput, description="Convert a length to metres.")
    except GeneratorExit:
        logger.info("closed")
    finally:
        logger.debug("done")
""",
    "locks and clients": """
from __future__ import annotations
import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
import httpx
from nat.plugin_api import Builder, FunctionBaseConfig, FunctionInfo, register_function
from pydantic import Field
from . import logic
class ToolConfig(FunctionBaseConfig, name="demo_scale"):
    digits: int = Field(default=2, ge=0, le=6, description="Digits kept.")
@asynccontextmanager
async def opened() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url="http://api.test", timeout=httpx.Timeout(5.0)) as client:
        yield client
@register_function(config_type=ToolConfig)
async def tool(config: ToolConfig, _builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    lock, calls = asyncio.Lock(), 0
    async def run(value: float, unit: str) -> str:
        \"\"\"Convert a length to metres.\"\"\"
        nonlocal calls
        async with lock, opened() as client:
            calls += 1
            with suppress(httpx.HTTPStatusError):
                response = await client.get("/x", params={"q": unit})
                if response.status_code != httpx.codes.OK:
                    response.raise_for_status()
            await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
        digits = getattr(config, "digits", 2) if hasattr(config, "digits") else 2
        return logic.scale(value, unit, digits)
    yield FunctionInfo.from_fn(run, description=run.__doc__)
""",
}


@pytest.mark.parametrize("name", [*LOGICS, *REGISTERS])
def test_ordinary_code_reaches_for_nothing_and_runs_confined(nat_toolkit: NatToolkit, name: str) -> None:
    path = "src/nat_demo/logic.py" if name in LOGICS else "src/nat_demo/register.py"
    text = {**LOGICS, **REGISTERS}[name].replace("FUNCTION\n", f"{FUNCTION}\n")
    evidence = run_confined(nat_toolkit, {path: text}, run_of([("scaler", each) for each in INPUTS]))
    assert (evidence.error, evidence.runs[0].answers) == (None, ANSWERS)
