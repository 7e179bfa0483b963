"""Sources that get at the interpreter behind a project's back, and ordinary ones that must not be taken for such."""

import pytest
from nat_projects import check
from test_hostile_nat import FORGERIES, SPEC, forged

from agent_rl.envs.nat.factory.questions import wanted_schemas
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.judge.worker.read_reach import reaches, reaches_of_project

ESCAPES = {
    "getattr by another name": 'import json\ng = getattr\ng(json.dumps, "__glo" + "bals__")',
    "getattr in reduce": 'import functools\nfunctools.reduce(getattr, ["__glo" + "bals__"], print)',
    "getattr in map": 'list(map(getattr, [print], ["__glo" + "bals__"]))',
    "getattr as a default": 'def f(x, get=getattr):\n    return get(x, "__glo" + "bals__")',
    "getattr in a class": "class A:\n    get = staticmethod(getattr)",
    "getattr as a decorator": "@getattr\ndef f(): ...",
    "getattr with an unpacked name": 'getattr(*[print, "__glo" + "bals__"])',
    "hasattr in a partial": "from functools import partial\npartial(hasattr, print)",
    "update_wrapper": 'import functools\nfunctools.update_wrapper(f, print, ("__glo" + "bals__",), ())',
    "update_wrapper by from": "from functools import update_wrapper",
    "__setattr__ of its own": "class W:\n    def __setattr__(self, name, value): ...",
    "__getattribute__ of its own": "class W:\n    def __getattribute__(self, name): ...",
    "__reduce_ex__ of its own": "class W:\n    def __reduce_ex__(self, p): ...",
    "__reduce_ex__ by assignment": "class W:\n    __reduce_ex__ = print",
    "__class_getitem__": "class W:\n    def __class_getitem__(cls, key): ...",
    "__set_name__": "class W:\n    def __set_name__(self, owner, name): ...",
    "__instancecheck__": "class W:\n    def __instancecheck__(self, each): ...",
    "__del__": "class W:\n    def __del__(self): ...",
    "a PyObject": "from pydantic.v1 import PyObject",
    "Path of a foreign module": "from pydantic.v1.env_settings import Path",
    "a module of pydantic": "from pydantic import main",
    "a module of pydantic as attribute": "import httpx\nhttpx._client.sys",
    "a transport of its own": "import httpx\nhttpx.MockTransport(print)",
    "a context of the toolkit": "from nat.builder.context import Context",
    "a function by hand": "from nat.builder.function import LambdaFunction",
    "an enumeration from texts": 'from enum import Enum\nEnum("E", {"__reduce" + "_ex__": print})',
    "an enumeration by another name": "from enum import Enum\nE = Enum",
    "an enumeration of the module": "import enum\nE = enum.Enum",
    "an enumeration without members": 'from enum import Enum\nclass E(Enum): ...\nE("F", {"a": 1})',
    "an enumeration without members that count": "from enum import Enum\nclass E(Enum):\n    a = lambda: 1",
    "an enumeration that leaves members out": 'from enum import Enum\nclass E(Enum):\n    _ignore_ = ["A"]\n    A = 1',
    "a typed dict from texts": 'from typing import TypedDict\nTypedDict("T", {"x": "print()"})',
    "a named tuple by another name": "from typing import NamedTuple\nN = NamedTuple",
    "a metaclass": "class M(type): ...",
    "a class with a metaclass": "from abc import ABC\nclass A(metaclass=print): ...",
    "a class derived from a call": "class A(type(print)): ...",
    "a class derived from the toolkit's builder": "from nat.plugin_api import Builder\nclass A(Builder): ...",
    "the type of an object": "t = type(print)",
    "the type of an object called": "type(print)(1)",
    "types in map": "list(map(type, [print]))",
    "a type compared with an object of its own": "def f(b, own):\n    return type(b) == own",
    "type changed": "type = print",
    "super of two": "class A:\n    def f(self, b):\n        return super(A, b)",
    "super by another name": "class A:\n    def f(self):\n        s = super\n        return s()",
    "the class of an object": "print.__class__",
    "a format that is put together": 'T = ("{0.__glo" + "bals__}").format(print)',
    "a format in a name": 'T = "{0.__glo" + "bals__}"\nT.format(print)',
    "a format that climbs": '"{0.real.numerator}".format(1)',
    "format of the class": "f = str.format",
    "format in map": "map(str.format, [])",
    "format_map": 'T = "{x" + "}"\nT.format_map({})',
    "a text in an alias": 'S = "pri" + "nt()"\nU = list[S]\ndef f(x: U): ...',
    "a text in an alias of an alias": 'S = "pri" + "nt()"\nU = list[S]\nV = U | None\nclass C:\n    x: V',
    "a name that is a type once": "T = int\nT = input()\ndef f(x: T): ...",
    "a name of a loop": "for T in []: ...\ndef f(x: T): ...",
    "an argument as hint": "def f(T):\n    def g(x: T): ...",
    "Literal by another name": 'Literal = list\ndef f(x: Literal["print()"]): ...',
    "a text that names a text": 'S = "pri" + "nt()"\ndef f(x: "S"): ...',
    "a text inside Annotated": 'from typing import Annotated\ndef f(x: Annotated["print()", 1]): ...',
    "a text as a bound": 'from typing import TypeVar\nT = TypeVar("T", bound="print()")',
    "a text as a return type": 'from pydantic import computed_field\ncomputed_field(return_type="print()")',
    "a text in a list of a constraint": 'from pydantic import conlist\ndef f(x: conlist("print()")): ...',
    "a text in a base": 'from pydantic import RootModel\nclass M(RootModel["print()"]): ...',
    "a model's generator": "class M:\n    model_config = {'schema_generator': print}",
    "a model's generator in a class": "class M:\n    class Config:\n        schema_generator = print",
    "a model's generator by a name": "class M:\n    Config = print",
    "a model's generator by import": "class M:\n    from math import pi as Config",
    "a model's generator by a loop": "class M:\n    for model_config in [{}]: ...",
    "a model's generator in two": "class M:\n    model_config, x = {}, 1",
    "a model's generator added": "class M:\n    model_config = {}\n    model_config['schema_generator'] = print",
    "a model's generator from outside": "class M:\n    model_config = {}\nM.model_config['x'] = 1",
    "a model rebuilt": "def f(m):\n    m.model_rebuild()",
    "a frame by getattr": 'def f(e):\n    return getattr(e, "tb_frame")',
    "a frame by match": "def f(g):\n    match g:\n        case object(gi_frame=frame):\n            return frame",
    "an attribute by match": "def f(t):\n    match t:\n        case object(configure_middleware=m): ...",
    "a value by match": "def f(t, own):\n    match own:\n        case t.single_fn: ...",
    "except*": "try: ...\nexcept* ValueError: ...",
    "input": "input()",
    "memoryview": "memoryview",
    "redirect_stdout": "from contextlib import redirect_stdout",
    "getnode": "import uuid\nuuid.getnode()",
    "hints read": "from typing_extensions import get_type_hints",
    "a logger that writes": "from logging import FileHandler",
    "a module with a level": "from .. import os",
    "isinstance of its own": "def isinstance(each, kind):\n    return kind\nisinstance(0, type)",
    "isinstance as an argument": "def f(isinstance):\n    return isinstance(0, type)",
    "isinstance of its own with an enumeration": "from enum import Enum\n"
    "def isinstance(each, kind):\n    return kind\nisinstance(0, Enum)",
    "isinstance by import": "from logic import pair as isinstance\nisinstance(0, type)",
    "super of its own": "def super():\n    return print\nsuper().__init__",
    "auto of its own": "from enum import Enum\ndef auto():\n    return print\nclass E(Enum):\n    a = auto()",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_is_named(name: str) -> None:
    found = reaches(ESCAPES[name])
    assert found and found[0]["line"] >= 1 and found[0]["what"]


PROJECTS = {
    "a module handed on": {"a/logic.py": "import json", "a/register.py": "from a.logic import json\njson.codecs"},
    "a module in a module": {
        "a/logic.py": "import json",
        "a/register.py": "from . import logic\nlogic.json.codecs.sys",
    },
    "a text handed on as a type": {
        "a/logic.py": 'T = "pri" + "nt()"',
        "a/register.py": "from .logic import T\ndef f(x: list[T]): ...",
    },
    "a text of a module as a type": {
        "a/logic.py": 'T = "pri" + "nt()"',
        "a/register.py": "from a import logic\ndef f(x: logic.T): ...",
    },
    "a name imported twice": {
        "a/logic.py": 'T = "pri" + "nt()"',
        "a/register.py": "from .logic import T\nfrom decimal import Decimal as T\ndef f(x: T): ...",
    },
    "the server": {"a/register.py": "import mcp_server"},
    "the tests": {"a/register.py": "from tests.test_a import x"},
    "what comes later": {"a/register.py": "def f():\n    from a.late import x"},
    "above": {"a/register.py": "from .. import os"},
    "no Python": {"a/logic.py": "def", "a/register.py": ""},
}


@pytest.mark.parametrize("name", PROJECTS)
def test_an_escape_over_two_modules_is_named(name: str) -> None:
    assert reaches_of_project({"a/__init__.py": "", **PROJECTS[name]})


EXEC = """["__buil" + "tins__"]["ex" + "ec"]"""
GETTERS = {
    "getattr by another name": 'g = getattr\nrun = g(json.dumps, "__glo" + "bals__")' + EXEC,
    "getattr in reduce": """import functools
run = functools.reduce(getattr, ["__glo" + "bals__"], json.dumps)"""
    + EXEC,
    "getattr in map": 'run = list(map(getattr, [json.dumps], ["__glo" + "bals__"]))[0]' + EXEC,
    "getattr as a default": """def take(each, name, get=getattr):
    return get(each, name)
run = take(json.dumps, "__glo" + "bals__")"""
    + EXEC,
    "update_wrapper": """import functools
got = []
class W:
    def __setattr__(self, name, value):
        got.append(value)
functools.update_wrapper(W(), json.dumps, ("__glo" + "bals__",), ())
run = got[0]"""
    + EXEC,
    "a PyObject": """from pydantic.v1 import BaseModel as Model, PyObject
class M(Model):
    f: PyObject
run = M(f="built" "ins.ex" "ec").f""",
    "a module handed on": "from PACKAGE.logic import codes\nrun = codes.codecs.builtins.exec",
    "a text in an alias": """from pydantic import BaseModel as Model
TEXT = "ex" + "ec(bytes.fromhex('CODE').decode(), dict(__name__='x'))"
Alias = list[TEXT]
class M(Model):
    f: Alias
def run(*_):
    return None""",
}
RUN_IT = '\nrun(bytes.fromhex("CODE").decode(), dict(__name__="x"))\n'


@pytest.mark.parametrize("name", GETTERS)
def test_no_way_to_the_interpreter_forges_a_build(nat_toolkit: NatToolkit, name: str) -> None:
    schemas = repr(wanted_schemas(SPEC))
    code = forged(SPEC, FORGERIES["the talk of the frames above"].replace("SCHEMAS", schemas)).encode().hex()
    text = f"import json\n{GETTERS[name]}{RUN_IT}".replace("CODE", code).replace("PACKAGE", SPEC.package)
    own = render_project(SPEC)
    broken = "\nraise RuntimeError('this project cannot be built')\n"
    files = {SPEC.register_path: text + own[SPEC.register_path] + broken}
    files[SPEC.logic_path] = "import json as codes\n" + own[SPEC.logic_path]
    report = check(nat_toolkit, SPEC, files)
    assert not report.complete and report.share("workflow") == 0.0
    assert not any(each.score for each in report.points if each.stage == "build")
