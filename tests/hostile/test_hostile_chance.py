"""Suites that decide by chance earn nothing, and what could be chance is told from what cannot."""

import os
import sys
from statistics import mean

import pytest
from hostile_files import HOSTILE, load
from hypothesis import given, settings
from hypothesis import strategies as st
from sandboxes import sandbox_fixture

from agent_rl.sandbox.chance import may_vary
from agent_rl.sandbox.limits import Limits
from agent_rl.sandbox.mutation import MutationGrader
from agent_rl.sandbox.sandbox import Sandbox

sandbox = sandbox_fixture(Limits(wall_s=6.0))
REFERENCE = {"solution.py": "_SECRET = 7\nTABLE = [1]\ndef double(n):\n    return 2 * n\n"}
MUTANTS = {f"mutant {n}": {"solution.py": f"def double(n):\n    return {n} * n\n"} for n in (1, 3, 4, 5)}
USE = "from solution import double\ndef test_a():\n    double(3)\n    assert {}\n"
ADDRESSES = {  # source of the digits of an address
    "repr": "repr(lambda: 0)[-8:-1]",
    "str": "str(lambda: 0)[-8:-1]",
    "ascii": "ascii(lambda: 0)[-8:-1]",
    "f-string": "f'{test_a}'[-8:-1]",
    "format": "'{}'.format(test_a)[-8:-1]",
    "percent": "('%s' % test_a)[-8:-1]",
    "percent of a method": "('%s' % 2 .bit_count)[-8:-1]",
    "percent of a pair": "('%s' % (test_a,))[-8:-1]",
    "class of a text": "type('')(test_a)[-8:-1]",
    "text of typing": "__import__('typing').Text(test_a)[-8:-1]",
    "template": "__import__('string').Template('$a').substitute(a=test_a)[-8:-1]",
}
ORDERS = {  # source of objects in the order of their addresses
    "set display": "{*[(lambda n=n: n) for n in range(8)]}",
    "set comprehension": "{(lambda n=n: n) for n in range(8)}",
    "set": "set([(lambda n=n: n) for n in range(8)])",
    "keys": "dict.fromkeys([(lambda n=n: n) for n in range(8)]).keys() | []",
}
COINS = {
    "random": "import random\n" + USE.format("random.random() > 0.3"),
    "random bits of the system": "import os\n" + USE.format("os.urandom(1)[0] > 70"),
    "secrets": "from secrets import randbelow\n" + USE.format("randbelow(10) > 2"),
    "a clock": "import time\n" + USE.format("time.perf_counter_ns() // 100 % 10 > 2"),
    "a date": "from datetime import datetime\n" + USE.format("datetime.now().microsecond % 10 > 2"),
    "uuid": "import uuid\n" + USE.format("uuid.uuid4().int % 10 > 2"),
    "by getattr": USE.format("getattr(__import__('ran' + 'dom'), 'random')() > 0.3"),
    "through another module": "import statistics\n" + USE.format("statistics.random.random() > 0.3"),
    "a thread": "import threading, time\ndone = []\n"
    "threading.Thread(target=lambda: [time.sleep(0.0001), done.append(1)]).start()\n"
    + USE.format("sum(range(400)) and not done or len(done) % 2"),
    "a set of objects": USE.format("[*{object(), 1, 2, 'x'}][0] != 1 or id(object()) // 16 % 3"),
    "a file": "from json.tool import Path\n" + USE.format("int(Path('/proc/self/stat').read_text().split()[13]) % 2"),
    "a frame": USE.format("(x for x in []).gi_frame.f_builtins['__import__']('random').random() > 0.3"),
    "a condition": "import pytest\n@pytest.mark.xfail(\"__import__('random').random() < 0.3\", strict=True)\n"
    "def test_a():\n    assert True\n",
    "an annotation": "import typing\ndef f(x: \"(str, int)[__import__('random').random() < 0.3]\"): ...\n"
    + USE.format("typing.get_type_hints(f)['x'] is not int"),
    "a hook": "pytest_plugins = ['test_a']\nseen = []\ndef pytest_runtest_makereport(item, call):\n"
    "    seen.append(call.start)\n" + USE.format("int(seen[0] * 10**6) % 3"),
    "phase of a clock": "import time\n" + USE.format("time.monotonic() % 0.3 > 0.06"),
    **{name: USE.format(f"int({text}, 16) // 64 % 3") for name, text in ADDRESSES.items()},
    **{name: USE.format(f"[f() for f in {text}][0] % 3") for name, text in ORDERS.items()},
    "args of an error": "from solution import double\ndef test_a():\n    try:\n        [].index(test_a)\n"
    "    except ValueError as e:\n        text = e.args[0].split()[3][2:-1]\n"
    "    assert double(3) and int(text, 16) // 64 % 3\n",
    "a pattern for an error": "import pytest\nfrom solution import double\ndef test_a():\n    double(3)\n"
    "    with pytest.raises(ValueError, match='[0-9a]0> is not|[0-9a][48]> is not'):\n        [].index(lambda: 0)\n",
    "other letters": "import ｒａｎｄｏｍ\n" + USE.format("ｒａｎｄｏｍ.random() > 0.3"),
}


@pytest.fixture(scope="module")
def grader() -> MutationGrader:
    return MutationGrader("test_a.py", REFERENCE, ["solution"], mutants=MUTANTS, rewrites={})


@pytest.mark.parametrize("name", COINS)
def test_a_coin_earns_next_to_nothing(sandbox: Sandbox, grader: MutationGrader, name: str) -> None:
    assert may_vary(COINS[name], ["solution"])
    scores = [grader.grade(sandbox, {"test_a.py": COINS[name]}).score for _ in range(2)]
    assert min(scores) == 0, scores  # one may come through; see the slow test for the mean


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_mean_score_of_all_coins(sandbox: Sandbox, grader: MutationGrader) -> None:
    means = {name: mean(grader.grade(sandbox, {"test_a.py": COINS[name]}).score for _ in range(16)) for name in COINS}
    assert mean(means.values()) < 0.01, means


def test_a_suite_that_runs_out_of_time_on_a_mutant_is_judged_again(sandbox: Sandbox) -> None:
    late = "import os\nIS_LATE = not os.path.exists('/tmp/mark')\nopen('/tmp/mark', 'w').close()\n"
    late += "def double(n):\n    while IS_LATE:\n        pass\n    return 2 * n\n"
    hangs = "def double(n):\n    while True:\n        pass\n"
    suite = {"test_a.py": "from solution import double\ndef test_a():\n    assert double(3) == 6\n"}
    scores = []
    for text in (late, hangs):
        mutants = {"late": {"solution.py": text}}
        grader = MutationGrader("test_a.py", REFERENCE, ["solution"], mutants=mutants, rewrites={}, call_s=0.2)
        scores.append(grader.grade(sandbox, suite).score)
    assert scores == [0.0, 1.0]


def test_a_suite_without_an_expected_value_learns_none_from_run_to_run(sandbox: Sandbox) -> None:
    (suite,) = load(HOSTILE / "suites" / "learns_from_devices").values()
    devices = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]
    starts = {device: os.stat(device).st_mtime_ns for device in devices}
    suite = suite.replace(b"STARTS = {}", f"STARTS = {starts}".encode())
    reference, *mutants = ({"solution.py": f"median = roman = merge = lambda x: ({n}, x)\n"} for n in (2, 1, 3, 4, 5))
    named = dict(zip("abcd", mutants, strict=True))
    grader = MutationGrader(
        "test_a.py", reference, ["solution"], mutants=named, rewrites={}, limits=Limits(wall_s=20.0)
    )
    assert [grader.grade(sandbox, {"test_a.py": suite}).score for _ in range(3)] == [0, 0, 0]
    assert {device: os.stat(device).st_mtime_ns for device in devices} == starts


def test_all_servers_of_a_sandbox_order_sets_of_texts_alike() -> None:
    source = "import os\nprint(list(map(str, set('abcdefgh'))), 'PYTHONHASHSEED' in os.environ)"
    seen = []
    for _ in range(3):
        with Sandbox.open(python=sys.executable, size=2) as pool:
            servers = [pool._free.get() for _ in range(2)]
            orders = set()
            for server in servers:
                pool._free.put(server)
                orders.add(pool.run_python(source).stdout)
                assert pool._free.get() is server
            for server in servers:
                pool._free.put(server)
            assert len(orders) == 1
            seen.append(orders.pop())
    assert len(set(seen)) > 1 and all(line.endswith("False\n") for line in seen)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.5])
def test_the_mean_score_of_a_coin(sandbox: Sandbox, grader: MutationGrader, share: float) -> None:
    coin = "import random\n" + USE.format(f"random.random() > {share}")
    assert mean(grader.grade(sandbox, {"test_a.py": coin}).score for _ in range(60)) < 0.02


def test_a_suite_that_is_right_and_one_that_asks_for_time_score_alike(sandbox: Sandbox, grader: MutationGrader) -> None:
    honest = "from solution import double\ndef test_a():\n    assert double(3) == 6\n"
    for text in (
        honest,
        "import time\n" + honest,
        "# °\n" + honest,
        honest + "    assert time is not None\nimport time\n",
    ):
        verdict = grader.grade(sandbox, {"test_a.py": text})
        assert verdict.score == 1.0 and verdict.holds, verdict.evidence


@pytest.mark.parametrize("name", ["_SECRET", "_hidden", "__dict__"])
def test_private_names_of_the_reference_are_not_served(sandbox: Sandbox, name: str) -> None:
    suite = f"import solution\ndef test_a():\n    assert solution.{name}\n"
    grader = MutationGrader("test_a.py", REFERENCE, ["solution"], mutants=MUTANTS, rewrites={})
    assert grader.grade(sandbox, {"test_a.py": suite}).score == 0
    public = "import solution\ndef test_a():\n    assert solution.TABLE == [1]\n"
    assert grader.grade(sandbox, {"test_a.py": public}).holds


PLAIN = (
    "from pkg.logic import convert\ndef test_a() -> None:\n    assert convert(1) == 'now'\n",
    "import pytest\nfrom pkg import logic\n@pytest.mark.parametrize('n', [1, 2])\ndef test_a(n):\n"
    "    with pytest.raises(ValueError):\n        logic.f(n)\n",
    "import math\nimport json, re\nfrom pkg.logic import (\n    a,\n    b as c,\n)\n"
    "def test_a():\n    assert math.isclose(a(), c())\n",
    '"""Tests of time, random, °."""\nfrom pkg.logic import f\n'
    'def test_a():\n    assert f("{1}") == "import os"  # °\n',
    "import collections.abc\nfrom pkg.logic import f\ndef test_a(n):\n    assert f({'a', 'b'}, {1, (-2, True)}, {}) == "
    "{'a': lambda x: 1, **{}}\n    assert n % 2 == 0 and f(10 % 3) and f.type == {n: n for n in [1]}\n",
    "import pytest, json\nfrom pytest import raises, mark\nfrom pkg.logic import f\n",
)
VARYING = (
    "import random\n",
    "import json; import os\n",
    "from os import path\n",
    "from .x import y\n",
    "import importlib\n",
    "import json, time\n",
    "import json as j, os as o\n",
    "import json \\\n  , os\n",
    "if 1: import os\n",
    "def f(): from time import sleep\n",
    "x = f'{__import__(\"os\")}'\n",
    "import json\njson.codecs.sys\n",
    "import typing\ntyping.sys\n",
    "import re\nre._compiler\n",
    "def test_a(tmp_path): ...\n",
    "def test_a(request): ...\n",
    "import pytest\npytest.main()\n",
    "from pytest import main\n",
    "from pytest import MonkeyPatch as m\n",
    "import pytest as p\np.main()\n",
    "assert id(3) % 2\n",
    "x" * 30_000,
    "import json, pytest as p\np.main()\n",
    "import pytest\nx = [pytest]\n",
    "from pytest import (raises,\n    main)\n",
    "ｉｄ(3)\n",
    "f(f'{1}')\n",
    "x = '%s'\nx %= f\n",
    "from json import tool\n",
    "import json.tool as j\n",
    "import math, json.tool\n",
    "import typing\ntyping.contextlib.redirect_stdout\n",
    "def test_a(pytestconfig): ...\n",
    "import pytest\n@pytest.mark.skipif('True', reason='')\ndef test_a(): ...\n",
    "import typing\nx = typing.Text(f)\n",
    "import string\nx = string.Template('$a')\n",
    "import collections\nx = collections.UserString(f)\n",
    "x = {f, g}\n",
    "x = {lambda: 0, f}\n",
    "x = {f(1): 2}\ny = {(x := f)}\n",
    "x = {*f}\n",
    "x = {('a', f)}\n",
    "x = {1, None}\n",
    "x = frozenset(f)\n",
    "x = a.items() - b\n",
    "x = e.tb.tb_frame\n",
    "x = a.b.co_consts\n",
)


@pytest.mark.parametrize("text", PLAIN)
def test_plain_suites_cannot_vary(text: str) -> None:
    assert not may_vary(text, ["pkg.logic"])


@pytest.mark.parametrize("text", VARYING)
def test_what_gets_at_chance_may_vary(text: str) -> None:
    assert may_vary(text, ["pkg.logic"])


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_decided(text: str) -> None:
    assert may_vary(text, ["pkg"]) in (True, False)
