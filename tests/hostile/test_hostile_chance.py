"""Suites that decide by chance earn nothing, and what could be chance is told from what cannot."""

from statistics import mean

import pytest
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
    "other letters": "import ｒａｎｄｏｍ\n" + USE.format("ｒａｎｄｏｍ.random() > 0.3"),
}


@pytest.fixture(scope="module")
def grader() -> MutationGrader:
    return MutationGrader("test_a.py", REFERENCE, ["solution"], mutants=MUTANTS, rewrites={})


@pytest.mark.parametrize("name", COINS)
def test_a_coin_earns_next_to_nothing(sandbox: Sandbox, grader: MutationGrader, name: str) -> None:
    assert may_vary(COINS[name], ["solution"])
    scores = [grader.grade(sandbox, {"test_a.py": COINS[name]}).score for _ in range(4)]
    assert mean(scores) <= 0.25, scores  # one of four may come through; see the slow test for the mean


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.5])
def test_the_mean_score_of_a_coin(sandbox: Sandbox, grader: MutationGrader, share: float) -> None:
    coin = "import random\n" + USE.format(f"random.random() > {share}")
    assert mean(grader.grade(sandbox, {"test_a.py": coin}).score for _ in range(60)) < 0.06


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
    'def test_a():\n    assert f(f"{1}") == "import os"  # °\n',
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
