"""Projects that lie about their build, tell stand-ins from tools, or look for what they will be asked."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nat_demo import FILES, run_demo, run_of
from nat_projects import check, spec_of

from agent_rl.envs.nat.factory.cases import hidden_cases
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.agent_client import AgentConversation
from agent_rl.envs.nat.judge.evidence import agent_evidence
from agent_rl.envs.nat.judge.evidence import tests_evidence as evidence_of_tests
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.judge.worker.read_reach import reaches
from agent_rl.sandbox.limits import JobResult, Status

SPEC = spec_of("unit_converter", 2)


def all_cases(spec: Any) -> str:
    """Every hidden question with its answer, as a project that knows the rules could compute them."""
    return repr([[each.expected for each in run.questions] for run in hidden_cases(spec, 0)])


PREFACE = "import json, os, sys\n"
ANSWERS_ALL = """
def lie(read, write):
    runs, turn, place = ANSWERS, -1, 0
    while True:
        order = json.loads(read())
        kind = order.pop("do")
        facts = {"n": order["n"]}
        if kind == "load":
            turn, place = turn + 1, 0
            facts["applied"] = True
        elif kind == "build":
            facts |= {"workflow_type": TYPE, "workflow_schema": {}, "schemas": SCHEMAS}
        elif kind == "ask":
            facts["answer"] = runs[turn][place]
            place += 1
        write(json.dumps(facts) + "\\n")
        if kind == "end":
            return
"""
BROKEN_BUILD = "\nraise RuntimeError('this project cannot be built')\n"
DESCRIPTORS = """
def line(fd):
    data = b""
    while not data.endswith(b"\\n"):
        data += os.read(fd, 1)
    return data
"""
FORGERIES = {
    "a report on descriptor 3": PREFACE + "os.write(3, json.dumps({'result': {}}).encode() + b'\\n')\nos._exit(0)\n",
    "a whole conversation": PREFACE
    + DESCRIPTORS
    + ANSWERS_ALL
    + """
import stat
pipes = [n for n in range(4, 30) if os.path.exists(f"/proc/self/fd/{n}") or True]
def is_pipe(n):
    try:
        return stat.S_ISFIFO(os.fstat(n).st_mode)
    except OSError:
        return False
ends = [n for n in pipes if is_pipe(n)]
source, sink = ends[0], ends[1]
os.write(sink, json.dumps({"n": NUMBER}).encode() + b"\\n")
lie(lambda: line(source), lambda text: os.write(sink, text.encode()))
os.write(3, json.dumps({'result': {}}).encode() + b'\\n')
os._exit(0)
""",
    "the talk of the frames above": PREFACE
    + ANSWERS_ALL
    + """
frame = sys._getframe()
while frame and "talk" not in frame.f_locals:
    frame = frame.f_back
talk = frame.f_locals["talk"]
talk.answer()
def read():
    order = talk.next()
    return json.dumps({"do": ORDER_KINDS(order), "n": talk._number})
def write(text):
    facts = json.loads(text)
    facts.pop("n")
    talk.answer(**facts)
state = {"stage": 0}
def ORDER_KINDS(order):
    if "build" in order:
        state["stage"] = 1
        return "load"
    if "ask" in order:
        state["stage"] = 2
        return "ask"
    if state["stage"] == 1:
        state["stage"] = 2
        return "build"
    state["stage"] = state["stage"] + 1
    return "leave" if state["stage"] == 3 else "end"
lie(read, write)
os.write(3, json.dumps({'result': {}}).encode() + b'\\n')
os._exit(0)
""",
    "a builder of its own": PREFACE
    + """
import contextlib
from nat.builder import workflow_builder
answers = ANSWERS
runs, turn = iter(answers), []
class Config:
    type = TYPE
class Schema:
    @staticmethod
    def model_json_schema():
        return {"properties": {}}
class Fake:
    input_schema = Schema
    config = Config
    async def build(self):
        turn[:] = next(runs)
        return self
    async def get_function(self, name):
        return self
    async def acall_invoke(self, **inputs):
        return turn.pop(0)
    @contextlib.asynccontextmanager
    async def run(self, value):
        yield self
    async def result(self, to_type=None):
        return turn.pop(0)
    @classmethod
    @contextlib.asynccontextmanager
    async def from_config(cls, config):
        yield cls()
for module in list(sys.modules.values()):
    if hasattr(module, "WorkflowBuilder"):
        module.WorkflowBuilder = Fake
import nat.utils.data_models.schema_validator as validator
for module in list(sys.modules.values()):
    if hasattr(module, "validate_schema"):
        module.validate_schema = lambda raw, kind: type("C", (), {"workflow": Config, "functions": {}})()
""",
}


def forged(spec: Any, text: str) -> str:
    schemas = repr({tool.instance: {each.name: "number" for each in tool.inputs} for tool in spec.tools})
    kind = repr(spec.tools[0].type_name if spec.workflow.kind == "direct" else spec.workflow.type_name)
    return (
        text.replace("ANSWERS", all_cases(spec))
        .replace("SCHEMAS", schemas)
        .replace("TYPE", kind)
        .replace("NUMBER", "0")
    )


@pytest.mark.parametrize("where", ["register", "logic", "__init__"])
@pytest.mark.parametrize("name", FORGERIES)
def test_a_project_that_cannot_be_built_forges_no_build(nat_toolkit: NatToolkit, name: str, where: str) -> None:
    path = {"register": SPEC.register_path, "logic": SPEC.logic_path, "__init__": f"src/{SPEC.package}/__init__.py"}[
        where
    ]
    own = render_project(SPEC).get(path, "")
    text = forged(SPEC, FORGERIES[name])
    files = {path: text + own, SPEC.register_path: (text + own if where == "register" else "") + BROKEN_BUILD}
    if where == "logic":
        files[SPEC.register_path] = f"import {SPEC.package}.logic\n" + BROKEN_BUILD
    report = check(nat_toolkit, SPEC, files)
    assert not report.complete
    assert report.share("workflow") == 0.0
    assert not any(each.score for each in report.points if each.stage == "build")


EVASIONS = {
    "import by text": "__import__('o' + 's')._exit(0)",
    "eval": "eval('1')",
    "exec": "exec('import os')",
    "a builtin by another name": "e = eval\ne('1')",
    "builtins": "__builtins__['eval']('1')",
    "getattr": "import math\ngetattr(math, '__loa' + 'der__')",
    "getattr of a private name": "import math\ngetattr(math, '__loader__')",
    "a module in a module": "import json\njson.codecs.sys.exit()",
    "a module of a module by from": "from json import codecs",
    "a module by another name": "import json\nj = json\nj.codecs",
    "a module in a list": "import json\nx = [json]\nx[0].codecs",
    "a module as argument": "import json\n(lambda m: m.codecs)(json)",
    "subclasses": "().__class__.__base__.__subclasses__()",
    "globals of a function": "def f(): ...\nf.__globals__",
    "a traceback": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    e.__traceback__.tb_frame",
    "a frame of a generator": "g = (n for n in [])\ng.gi_frame.f_back",
    "a frame of a task": "import asyncio\nasyncio.current_task().get_stack()",
    "a coroutine": "async def f(): ...\nf().cr_frame",
    "attrgetter": "from operator import attrgetter\nattrgetter('__globals__')",
    "attrgetter of a module": "import operator\noperator.attrgetter('__globals__')",
    "Formatter": "import string\nstring.Formatter().get_field('0.__globals__', [print], {})",
    "a text as hint": "def f(x: \"__import__('os')._exit(0)\"): ...",
    "a call as hint": "def f(x: \"print('x')\"): ...",
    "a hint that is put together": "def f(x: 'a' + 'b'): ...",
    "a hint in a variable": "T = '__imp' + 'ort__'\ndef f(x: list[T]): ...",
    "a hint in an alias": "T = 'print()'\nU = list[T]\nclass C:\n    x: U\n    y: T",
    "a model by text": "from pydantic import create_model",
    "a type adapter": "from pydantic import TypeAdapter",
    "setattr": "setattr(print, 'x', 1)",
    "the builder changed": "async def f(builder):\n    builder.get_function = None",
    "a class of the toolkit changed": "from nat.plugin_api import Builder\nBuilder.get_function = None",
    "a class by type": "type('X', (), {})",
    "os": "import os",
    "os by from": "from os import path",
    "sys": "import sys",
    "gc": "import gc",
    "ctypes": "import ctypes",
    "inspect": "import inspect",
    "subprocess": "import subprocess",
    "threads": "import threading",
    "signals": "import signal",
    "atexit": "import atexit",
    "importlib": "import importlib",
    "pathlib": "from pathlib import Path",
    "open": "open('x')",
    "io": "import io\nio.open('x')",
    "io by from": "from io import open as o",
    "a star": "from os import *",
    "the judge": "from agent_rl.envs.nat.judge.worker import mock_tools",
    "the judge as a module": "import agent_rl",
    "the registry of the toolkit": "from nat.cli.type_registry import GlobalTypeRegistry",
    "a module of the toolkit": "import nat.builder.workflow_builder as w\nw.WorkflowBuilder = None",
    "a module of the toolkit by from": "from nat.builder import workflow_builder",
    "loaders": "from asyncio import subprocess",
    "private": "async def f(builder):\n    builder._functions.clear()",
    "a private attribute by hasattr": "hasattr(print, '_x' + 'y')",
    "named tuples of texts": "from typing import NamedTuple\nNamedTuple('X', [('a', 'print()')])",
    "globals": "globals()['x'] = 1",
    "a dunder name": "__spec__.loader",
    "a match": "match print:\n    case object(__globals__=g):\n        pass",
    "an unpacked module": "import json\nx, = (json,)",
    "a default": "import json\ndef f(m=json): ...",
    "a decorator": "import json\n@json.codecs.lookup\ndef f(): ...",
    "a walrus": "import json\n(m := json)",
    "a keyword": "import json\ndict(m=json)",
    "del": "from nat.plugin_api import Builder\ndel Builder.get_function",
    "augmented": "from nat.plugin_api import FunctionInfo\nFunctionInfo.from_fn += 1",
    "a loop target": "from nat.plugin_api import FunctionInfo\nfor FunctionInfo.from_fn in [1]: ...",
    "a with target": "from nat.plugin_api import FunctionInfo\nwith f() as FunctionInfo.from_fn: ...",
    "a global class attribute": "import math\nmath.pi = 3",
}


@pytest.mark.parametrize("name", EVASIONS)
def test_what_reaches_beyond_is_named_with_its_line(name: str) -> None:
    found = reaches(EVASIONS[name])
    assert found and all(each["line"] >= 1 and each["what"] for each in found)


HONEST = {
    "usual imports": """
from __future__ import annotations
import asyncio, collections.abc, json, logging, math, re, urllib.parse
import datetime as dt
import httpx
from collections.abc import AsyncGenerator
from datetime import date, datetime, timedelta
from typing import Any, Literal, Optional, TypeVar
from pydantic import BaseModel, Field, field_validator
from nat.plugin_api import Builder, FunctionBaseConfig, FunctionInfo, FunctionRef, register_function
from nat.builder.builder import Builder as B
from nat.cli.register_workflow import register_function as r
from nat.data_models.function import FunctionBaseConfig as F
from . import logic
from .logic import convert
from unit_agent.logic import convert as c
logger = logging.getLogger(__name__)
async def f(x: dt.date | None = None) -> str:
    await asyncio.sleep(0)
    async with httpx.AsyncClient() as client:
        return (await client.get("u")).text
""",
    "classes": """
from dataclasses import dataclass, field
from enum import Enum
@dataclass
class A:
    _x: int = 0
    items: list[str] = field(default_factory=list)
    def __post_init__(self) -> None:
        self._y = self._x
        self.count = 0
    def add(self, other: "A") -> "A":
        self.count += 1
        return self
class K(Enum):
    A = 1
def f(a: A) -> str:
    a.count = 3
    return type(a).__name__ + a.__class__.__name__
""",
    "hints": """
from typing import Annotated, Callable, Literal, TypeVar
T = TypeVar("T")
Unit = Literal["m", "km"]
Table = dict[str, list[int]]
def f(x: Annotated[int, "metres"], u: Unit, t: Table, g: Callable[[T], T]) -> "int | None": ...
""",
    "texts": """
def f() -> str:
    "Uses {x!r} and group__name."
    return "{0} {1.2f}".format("a__b", "c") + f"{1}"
""",
    "getattr with a default": """
def f(config):
    return getattr(config, "digits", 2) if hasattr(config, "digits") else 0
""",
    "errors": """
class E(ValueError): ...
def f():
    try:
        raise E("x") from None
    except (E, KeyError) as e:
        return str(e) + repr(e.args)
""",
}


@pytest.mark.parametrize("name", HONEST)
def test_usual_code_reaches_for_nothing(name: str) -> None:
    assert reaches(HONEST[name]) == []


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=120))
def test_any_text_is_read_or_refused_as_python(text: str) -> None:
    try:
        reaches(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return


# ---------------------------------------------------------------- stand-ins

LOOKS = {
    "its configuration": "builder.get_function_config({name}).type",
    "its fields": "sorted(builder.get_function_config({name}).model_dump())",
    "its class": "type(await builder.get_function({name})).__name__",
    "its description": "(await builder.get_function({name})).description",
    "its name": "(await builder.get_function({name})).instance_name",
    "its input": "(await builder.get_function({name})).input_schema.__name__",
    "its fields of input": "sorted((await builder.get_function({name})).input_schema.model_fields)",
    "its output": "str((await builder.get_function({name})).single_output_type)",
    "its text": "repr(builder.get_function_config({name}))",
    "its attributes": "sorted(dir(await builder.get_function({name})))",
    "of the configuration": "sorted(dir(builder.get_function_config({name})))",
}
FLOW = """

class FlowConfig(FunctionBaseConfig, name="demo_flow"):
    scaler: FunctionRef


@register_function(config_type=FlowConfig)
async def flow(config: FlowConfig, builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    seen = LOOK

    async def run(unit: str) -> str:
        \"\"\"Look.\"\"\"
        return f"{seen}"

    yield FunctionInfo.from_fn(run, description=run.__doc__)
"""


@pytest.mark.parametrize("name", LOOKS)
def test_a_stand_in_looks_like_the_tool(nat_toolkit: NatToolkit, name: str) -> None:
    register = FILES["src/nat_demo/register.py"].replace("register_function\n", "register_function, FunctionRef\n")
    files = {
        "src/nat_demo/register.py": register + FLOW.replace("LOOK", LOOKS[name].format(name="config.scaler")),
        "src/nat_demo/configs/config.yml": FILES["src/nat_demo/configs/config.yml"].replace(
            "workflow:\n  _type: demo_scale", "workflow:\n  _type: demo_flow\n  scaler: scaler"
        ),
    }
    calls = [("", {"unit": "km"}), ("scaler", {"value": 2.0, "unit": "km"})]
    usual, swapped = run_demo(nat_toolkit, files, run_of(calls), run_of(calls, swapped={"scaler": "7"})).runs
    assert usual.answers[0] == swapped.answers[0]
    assert (usual.answers[1], swapped.answers[1]) == ("2000.00 m", "7")


# ---------------------------------------------------------------- the network's table

SEARCH = """
import gc
import json

OWN = ["http://api.test/own" + MARK]

def in_objects():
    found = set()
    for each in gc.get_objects():
        texts = [*each, *each.values()] if type(each) is dict else each if isinstance(each, (list, tuple, set)) else []
        for text in texts:
            if isinstance(text, str) and MARK in text:
                found.add(text)
            elif isinstance(text, bytes) and MARK.encode() in text:
                found.add(text.decode("latin-1"))
    return found

def in_memory():
    found = set()
    try:
        maps, memory = open("/proc/self/maps"), open("/proc/self/mem", "rb")
    except PermissionError:
        return {"closed"}
    with maps, memory:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if "rw" not in line or end - start > 1 << 27:
                continue
            try:
                memory.seek(start)
                data = memory.read(end - start)
            except (OSError, ValueError):
                continue
            place = data.find(b"/secret" + MARK.encode())
            if place >= 0:
                found.add(data[place : place + 60].decode("latin-1"))
    return found

def scale(value, unit, digits=2):
    return json.dumps([sorted(in_objects()), sorted(in_memory())])
"""


def test_the_addresses_of_hidden_cases_are_not_in_the_projects_process(nat_toolkit: NatToolkit) -> None:
    mark = "-address-" + "7731"
    table = {
        f"GET http://api.test/secret{mark}{n}": {"status": 200, "body": "x", "failure": None, "headers": {}}
        for n in range(9)
    }
    logic = SEARCH.replace("MARK", f"({mark[:5]!r} + {mark[5:]!r})")
    run = run_of([("scaler", {"value": 1.0, "unit": "m"})], exchanges=table)
    evidence = run_demo(nat_toolkit, {"src/nat_demo/logic.py": logic}, run)
    assert evidence.error is None
    in_objects, in_memory = json.loads(evidence.runs[0].answers[0])
    assert in_objects == [f"http://api.test/own{mark}"]  # what is there is found, and nothing else is there
    assert in_memory in ([], ["closed"])


# ---------------------------------------------------------------- reports of any shape

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("stage", "error", "workflow_type", "workflow_schema", "schemas", "runs", "collected", "outcomes", "exit_code")


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6) | VALUES)
def test_no_report_raises_in_the_host(report: Any) -> None:
    report = json.loads(json.dumps(report))
    job = JobResult(status=Status.OK, result=report, exit_code=0)
    assert evidence_of_tests(job).seconds == 0.0
    conversation = AgentConversation()
    if isinstance(report, dict):
        conversation.report |= report
    assert agent_evidence(conversation, job).seconds == 0.0


def test_an_answer_nested_too_deep_to_be_written_raises_nothing() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    conversation = AgentConversation()
    conversation.report |= {"stage": "done", "runs": [{"applied": True, "answers": [deep]}], "workflow_type": "x"}
    evidence = agent_evidence(conversation, JobResult(status=Status.OK, exit_code=0))
    assert not evidence.is_settled
    while deep:  # Python takes a deep value apart by recursion
        deep = deep.pop()
