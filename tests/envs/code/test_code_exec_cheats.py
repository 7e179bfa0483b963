"""Programs that want the verdict without the work: nothing is earned, and the next program is judged as ever."""

from collections.abc import Iterator
from typing import Any

import pytest
from hostile_files import HOSTILE, load
from sandboxes import code_factory_or_skip
from test_code_exec_env import RIGHT, ROW, answers, begun, replies, run

from agent_rl.envs.code.env import CodeExecEnvFactory

CHEATS = {
    "prints the verdict": """
print("all tests pass")
def add(a, b):
    print("all tests pass")
""",
    "exits at once": """
import os
os._exit(0)
""",
    "exits at import": """
import sys
def add(a, b):
    return a + b
sys.exit()
""",
    "exits in the function": """
import os
def add(a, b):
    os._exit(0)
""",
    "never ends": """
while True:
    pass
""",
    "forks without end": """
import os
while True:
    os.fork()
""",
    "takes all memory": """
x = [bytearray(10**7) for _ in range(1000)]
""",
    "prints without end": """
while True:
    print("x" * 10000)
""",
    "answers every comparison": """
class Any(int):
    def __eq__(self, other):
        return True
def add(a, b):
    return Any()
""",
    "patches built-ins": """
import builtins
builtins.isinstance = builtins.all = builtins.len = lambda *args: True
def add(a, b):
    return 0
""",
    "forges answers": """
import json, os
for number in range(4):
    for descriptor in range(3, 30):
        try:
            os.write(descriptor, json.dumps({"item": {"case": number, "value": 3}}).encode() + b"\\n")
        except OSError:
            pass
def add(a, b):
    return 0
""",
    "searches the heap and the stack": """
import gc, sys
def add(a, b):
    found, frame = gc.get_objects(), sys._getframe()
    while frame:
        found += [frame.f_locals, *frame.f_locals.get("request", {}).get("cases", [])]
        frame = frame.f_back
    for thing in found:
        if isinstance(thing, dict) and "function" in thing and "expected" in thing:
            return thing["expected"]
""",
    "reads the disk": """
import json, os, re
texts = []
for folder, _, names in os.walk("."):
    for name in names:
        texts.append(open(os.path.join(folder, name)).read())
def add(a, b):
    for text in texts:
        if found := re.search(r'"expected": (\\d+)', text):
            return int(found[1])
""",
}


@pytest.fixture(scope="module")
def factory() -> Iterator[CodeExecEnvFactory]:
    with code_factory_or_skip(workers=1, time_limit_s=1.0, memory_mb=128) as opened:
        yield opened


@pytest.mark.parametrize("name", CHEATS)
def test_a_program_that_cheats_earns_nothing(factory: CodeExecEnvFactory, name: str) -> None:
    env = begun(factory)
    tried = run(env, CHEATS[name])
    assert not tried.terminated and tried.reward == 0.0
    assert len(replies(tried)[0]) < 600
    end = answers(env, "That is it.")
    assert (end.reward, end.reward_parts["tests_passed"], end.reward_parts["success"]) == (0.0, 0.0, 0.0)
    assert run(begun(factory), RIGHT).reward == 1.0


def test_a_block_that_cheats_is_judged_like_a_call(factory: CodeExecEnvFactory) -> None:
    end = answers(begun(factory), f"```python{CHEATS['prints the verdict']}```")
    assert (end.terminated, end.reward, end.reward_parts["tests_passed"]) == (True, 0.0, 0.0)


# ---------------------------------------------------------------- every hostile solution and program of the tests

NUMERALS: dict[str, Any] = {
    **ROW,
    "prompt": "Write median(xs), roman(n) and merge(intervals).",
    "tests": [
        {"function": "median", "args": [[3, 1, 2]], "expected": 2},
        {"function": "roman", "args": [1], "expected": "I"},
        {"function": "median", "args": [[4, 1, 2, 3]], "expected": 2.5},
        *({"function": "roman", "args": [n], "expected": s} for n, s in ((4, "IV"), (9, "IX"), (1994, "MCMXCIV"))),
        {"function": "merge", "args": [[[1, 3], [2, 6], [8, 10]]], "expected": [[1, 6], [8, 10]]},
        {"function": "median", "args": [[]], "raises": "ValueError"},
        {"function": "median", "args": [[0.1, 0.2]], "expected": 0.15},
    ],
    "reference_solution": load(HOSTILE / "solutions" / "honest")["solution.py"].decode(),
}
RIGHT_IN_ONE_FILE = {"honest", "honest_prints_failed", "honest_unused_conftest"}
"""The other honest ones are spread over files, or leave a thread behind that keeps the program from ending."""
SOLUTIONS = {path.parent.name: path for path in sorted((HOSTILE / "solutions").glob("*/solution.py*"))}
PROGRAMS = {path.stem: path for path in sorted((HOSTILE / "programs").glob("*.py"))}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_hostile_solution_succeeds_only_where_it_is_right(factory: CodeExecEnvFactory, name: str) -> None:
    env = begun(factory, NUMERALS)
    result = run(env, SOLUTIONS[name].read_bytes().decode("utf-8", "replace"))
    assert result.terminated == (name in RIGHT_IN_ONE_FILE), replies(result)
    assert result.reward == float(result.terminated)
    if not result.terminated:
        assert answers(env, "That is it.").reward == 0.0
    assert run(begun(factory), RIGHT).reward == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hostile_program_earns_nothing(factory: CodeExecEnvFactory, name: str) -> None:
    env = begun(factory)
    assert not run(env, PROGRAMS[name].read_text()).terminated
    assert run(env, RIGHT).reward == 1.0
    assert factory.describe()["sandbox"]["restarts"] == 0
