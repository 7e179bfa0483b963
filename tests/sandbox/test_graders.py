"""Graders against honest and hostile solutions: only right answers score, and nothing hostile is an error of ours."""

from dataclasses import replace
from functools import partial

import pytest
from hostile_files import HOSTILE, load
from sandboxes import sandbox_fixture

from agent_rl.errors import SandboxError, UserError
from agent_rl.sandbox.freeze import Flag
from agent_rl.sandbox.graders import CallGrader, Case, SplitPytestGrader
from agent_rl.sandbox.guest.codec import same
from agent_rl.sandbox.limits import Limits, Status
from agent_rl.sandbox.mutation import MutationGrader
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.sandbox.verdict import Outcome

LIMITS = Limits(wall_s=6.0, cpu_s=2, memory_mb=256, processes=32)
HIDDEN = """
import pytest
from solution import median, roman, merge
CASES = [(1, "I"), (4, "IV"), (9, "IX"), (1994, "MCMXCIV")]
def test_median_odd():
    assert median([3, 1, 2]) == 2
def test_median_even():
    assert median([4, 1, 2, 3]) == 2.5
@pytest.mark.parametrize("n,s", CASES)
def test_roman(n, s):
    assert roman(n) == s
def test_merge():
    assert merge([[1, 3], [2, 6], [8, 10]]) == [[1, 6], [8, 10]]
def test_median_empty():
    with pytest.raises(ValueError):
        median([])
def test_median_close():
    assert abs(median([0.1, 0.2]) - 0.15) < 1e-9
"""
CASES = [
    Case(function="median", args=([3, 1, 2],), expected=2),
    Case(function="median", args=([4, 1, 2, 3],), expected=2.5),
    *(Case(function="roman", args=(n,), expected=s) for n, s in ((1, "I"), (4, "IV"), (9, "IX"), (1994, "MCMXCIV"))),
    Case(function="merge", args=([[1, 3], [2, 6], [8, 10]],), expected=[[1, 6], [8, 10]]),
    Case(function="median", args=([],), raises="ValueError"),
    Case(function="median", args=([0.1, 0.2],), expected=0.15),
]
FULL = {
    "honest",
    "honest_daemon_thread",
    "honest_helper_file",
    "honest_in_src",
    "honest_prints_failed",
    "honest_unused_conftest",
}
PARTIAL = {  # tests they really pass: by luck, by an exception that is expected, or by an example they know
    "honest_almost": 7,
    "known_examples_only": 3,
    "raise_unicode_error": 1,  # is a ValueError
    "raise_value_error": 1,
}
STATUS = {
    "flood_stdout": Status.OUTPUT_LIMIT,
    "hang_in_function": Status.TIMEOUT,
    "honest": Status.OK,
    "os_exit_in_function": Status.CRASHED,
    "slow_drip": Status.TIMEOUT,
    "spin": Status.TIMEOUT,
}
SOLUTIONS = sorted(path.name for path in (HOSTILE / "solutions").iterdir())
SUITES = sorted(path.name for path in (HOSTILE / "suites").iterdir())


HONEST = load(HOSTILE / "solutions" / "honest")


sandbox = sandbox_fixture(LIMITS)


@pytest.fixture(scope="module")
def split(sandbox: Sandbox) -> SplitPytestGrader:
    return SplitPytestGrader.record(sandbox, {"test_hidden.py": HIDDEN}, HONEST, ["solution"], call_s=0.4)


# ---------------------------------------------------------------- every solution, both graders


def test_a_candidate_beside_which_the_judge_never_reports_did_not_end_well(
    sandbox: Sandbox, split: SplitPytestGrader, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = split._run

    def run(sandbox: Sandbox, files: dict[str, bytes]) -> tuple:
        candidate, (judge,) = real(sandbox, files)
        return candidate, (replace(judge, status=Status.TIMEOUT) if files else judge,)

    monkeypatch.setattr(split, "_run", run)
    verdict = split.grade(sandbox, HONEST)
    assert (verdict.status, verdict.passed, verdict.total) == (Status.CRASHED, 0, 9)
    assert "the judge could report without it only" in verdict.evidence


@pytest.mark.parametrize("name", SOLUTIONS)
def test_hidden_tests_score_what_a_solution_really_does(sandbox: Sandbox, split: SplitPytestGrader, name: str) -> None:
    verdict = split.grade(sandbox, load(HOSTILE / "solutions" / name))
    assert (verdict.passed, verdict.total) == (9 if name in FULL else PARTIAL.get(name, 0), 9), verdict.evidence
    assert verdict.full == (name in FULL)
    assert verdict.status == STATUS.get(name, verdict.status)


@pytest.mark.parametrize("name", SOLUTIONS)
def test_cases_score_what_a_solution_really_does(sandbox: Sandbox, name: str) -> None:
    verdict = CallGrader("solution", CASES, compare=partial(same, rel_tol=1e-9), limits=Limits(wall_s=0.5)).grade(
        sandbox, load(HOSTILE / "solutions" / name)
    )
    assert (verdict.passed, verdict.total) == (9 if name in FULL else PARTIAL.get(name, 0), 9), verdict.evidence


def test_the_sandbox_is_as_good_as_new_after_all_of_them(sandbox: Sandbox, split: SplitPytestGrader) -> None:
    assert split.grade(sandbox, HONEST).full
    assert sandbox.describe()["restarts"] == 0


# ---------------------------------------------------------------- SplitPytestGrader


def test_recording_keeps_the_ids_of_the_reference_and_flags_nothing_honest(
    sandbox: Sandbox, split: SplitPytestGrader
) -> None:
    assert len(split.expected_ids) == 9 and "test_hidden.py::test_roman[4-IV]" in split.expected_ids
    assert split.grade(sandbox, HONEST).flags == ()


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("from solution import median\ndef test_a():\n    assert median([1]) == 2\n", "must pass every test"),
        ("import pytest\n@pytest.mark.skip\ndef test_a():\n    pass\n", "must pass every test"),
        ("from solution import no_such_name\ndef test_a():\n    pass\n", "must pass every test"),
        ("def test_a():\n    assert True\n", "pass without any solution"),
        ("x = 1\n", "nothing that pytest collects"),
    ],
)
def test_recording_refuses_tests_that_cannot_distinguish_solutions(sandbox: Sandbox, tests: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        SplitPytestGrader.record(sandbox, {"test_x.py": tests}, HONEST, ["solution"])


METHOD = """import unittest
from solution import median
class T(unittest.TestCase):
    def test_a(self):
        for xs, right in (([3, 1, 2], 2), ([1, 2], 1.5)):
            with self.subTest(xs=xs):
                self.assertEqual(median(xs), right)
        with self.assertRaises(ValueError):
            median([])
"""


def test_methods_of_a_test_case_are_recorded_and_judged(sandbox: Sandbox) -> None:
    grader = SplitPytestGrader.record(sandbox, {"test_x.py": METHOD}, HONEST, ["solution"])
    assert grader.expected_ids == ("test_x.py::T::test_a",)
    assert grader.grade(sandbox, HONEST).full
    wrong = changed("(s[n // 2 - 1] + s[n // 2]) / 2", "s[n // 2]")
    assert grader.grade(sandbox, wrong).per_test == {"test_x.py::T::test_a": Outcome.FAILED}


def test_a_suite_of_a_test_case_kills_mutants(sandbox: Sandbox) -> None:
    mutants = {"even": changed("(s[n // 2 - 1] + s[n // 2]) / 2", "s[n // 2]")}
    grader = MutationGrader("test_m.py", HONEST, ["solution"], mutants=mutants, rewrites={})
    assert grader.grade(sandbox, {"test_m.py": METHOD}).full


STACK = """
LIMIT = 2
OPTIONS = {"a": [1]}
class StackError(Exception):
    pass
class Stack:
    def __init__(self):
        self.items = []
    def push(self, item):
        if len(self.items) == LIMIT:
            raise StackError(f"at most {LIMIT}")
        self.items.append(item)
        return self
    def __len__(self):
        return len(self.items)
def fill(numbers, extra, *, seen):
    numbers.append(4)
    extra["k"] = {1, 2}
    seen.add("x")
def same_stack(one, other):
    return one is other
def key():
    return {}["missing"]
"""
STACK_TESTS = """
import pytest
import pkg.logic
from pkg.logic import LIMIT, OPTIONS, Stack, StackError, fill, key, same_stack
from pkg import logic
def test_constants():
    assert LIMIT == 2 and OPTIONS == {"a": [1]} and logic.LIMIT == pkg.logic.LIMIT
def test_objects_stay_there_and_keep_their_state():
    stack = Stack()
    assert stack.push(1).push(2).items == [1, 2]
    assert same_stack(stack, stack) is True and same_stack(stack, Stack()) is False
def test_own_exceptions():
    with pytest.raises(StackError, match="at most 2"):
        Stack().push(1).push(2).push(3)
def test_built_in_exceptions_keep_their_arguments():
    with pytest.raises(KeyError) as caught:
        key()
    assert caught.value.args == ("missing",)
def test_arguments_are_changed_in_place():
    numbers, extra, seen = [3], {}, set()
    fill(numbers, extra, seen=seen)
    assert (numbers, extra, seen) == ([3, 4], {"k": {1, 2}}, {"x"})
def test_missing_names():
    with pytest.raises(ImportError):
        from pkg.logic import no_such_name
"""


def test_a_dotted_module_serves_classes_constants_exceptions_and_arguments_changed_in_place(sandbox: Sandbox) -> None:
    files = {"pkg/__init__.py": "", "pkg/logic.py": STACK}
    grader = SplitPytestGrader.record(sandbox, {"test_stack.py": STACK_TESTS}, files, ["pkg.logic"])
    assert len(grader.expected_ids) == 6
    broken = grader.grade(sandbox, {**files, "pkg/logic.py": STACK.replace("numbers.append(4)", "pass")})
    assert broken.per_test["test_stack.py::test_arguments_are_changed_in_place"] is Outcome.FAILED
    assert broken.passed == 5


@pytest.mark.parametrize(
    "check",
    [
        "thing() == thing()",
        "thing() != 3",
        "thing() < 3",
        "bool(thing())",
        "not thing()",
        "len(thing()) + 1",
        "list(thing()) or True",
        "3 in thing()",
        "hash(thing()) or True",
        "thing()[0] or True",
        "int(thing()) or True",
        "str(thing())",
        "[thing()] == [1]",
    ],
)
def test_an_object_that_stays_there_cannot_answer_a_check(sandbox: Sandbox, check: str) -> None:
    special = ("eq", "ne", "lt", "bool", "len", "iter", "contains", "hash", "getitem", "int", "str")
    methods = "".join(f"    def __{name}__(self, *rest):\n        return 1\n" for name in special)
    solution = f"class Thing:\n{methods}def thing():\n    return Thing()\n"
    test = "from solution import thing\ndef test_a():\n    try:\n"
    test += f"        assert {check}\n    except Exception:\n        pass\n"
    grader = SplitPytestGrader({"test_x.py": test}, ["test_x.py::test_a"], ["solution"])
    verdict = grader.grade(sandbox, {"solution.py": solution})
    assert verdict.per_test == {"test_x.py::test_a": Outcome.FAILED}
    assert Flag.ANSWER_NOT_PLAIN in verdict.flags


def test_being_gone_is_not_the_exception_a_test_waits_for(sandbox: Sandbox) -> None:
    test = "import pytest, solution\ndef test_a():\n    with pytest.raises(Exception):\n        solution.f()\n"
    grader = SplitPytestGrader({"test_x.py": test}, ["test_x.py::test_a"], ["solution"])
    assert grader.grade(sandbox, {"solution.py": "def f():\n    raise ValueError\n"}).full
    for leave in ("import os; os._exit(0)", "raise SystemExit", "raise AssertionError"):
        verdict = grader.grade(sandbox, {"solution.py": f"def f():\n    {leave}\n"})
        assert verdict.full == (leave == "raise AssertionError")


def test_missing_extra_and_skipped_tests_do_not_pass(sandbox: Sandbox) -> None:
    test = (
        "import pytest, solution\n@pytest.mark.parametrize('n', solution.NUMBERS)\ndef test_a(n):\n    solution.f(n)\n"
    )
    test += "def test_b():\n    if solution.NUMBERS[0] == 0:\n        pytest.skip('no')\n"
    ids = ["test_x.py::test_a[1]", "test_x.py::test_a[2]", "test_x.py::test_b"]
    grader = SplitPytestGrader({"test_x.py": test}, ids, ["solution"])
    passed = {
        n: grader.grade(sandbox, {"solution.py": f"NUMBERS = {n}\ndef f(n):\n    pass\n"}) for n in ("[1, 2]", "[1]")
    }
    assert [verdict.passed for verdict in passed.values()] == [3, 2]
    assert passed["[1]"].per_test["test_x.py::test_a[2]"] is Outcome.MISSING
    extra = grader.grade(sandbox, {"solution.py": "NUMBERS = [0, 1, 2]\ndef f(n):\n    pass\n"})
    assert extra.score == 0 and Flag.UNEXPECTED_TESTS in extra.flags


def test_a_judge_that_cannot_reach_a_verdict_is_an_error_of_ours(sandbox: Sandbox) -> None:
    grader = SplitPytestGrader({"test_x.py": "import os\nos._exit(0)\n"}, ["test_x.py::test_a"], ["solution"])
    with pytest.raises(SandboxError, match="gave no verdict"):
        grader.grade(sandbox, HONEST)


@pytest.mark.parametrize("name", ["json", "pytest", "_pytest.x", "not a name", ""])
def test_the_module_of_a_task_must_have_a_name_of_its_own(name: str) -> None:
    with pytest.raises(UserError, match="cannot be the module"):
        CallGrader(name, CASES)


# ---------------------------------------------------------------- CallGrader


def test_answers_are_compared_type_by_type_and_arguments_after_the_call(sandbox: Sandbox) -> None:
    source = "def f(kind):\n    return {'int': 1, 'bool': True, 'tuple': (1,), 'none': None}[kind]\n"
    source += "def g(xs, *, by):\n    xs.append(by)\n"
    cases = [
        Case(function="f", args=("int",), expected=1.0, id="number"),
        Case(function="f", args=("bool",), expected=1, id="bool is no number"),
        Case(function="f", args=("tuple",), expected=[1], id="tuple is no list"),
        Case(function="f", args=("none",), id="none"),
        Case(function="f", args=("other",), raises="LookupError", id="derived exception"),
        Case(function="f", args=("other",), raises="ValueError", id="other exception"),
        Case(function="g", args=([1],), kwargs={"by": 2}, expected_args=([1, 2],), id="in place"),
        Case(function="g", args=([1],), kwargs={"by": 2}, expected_args=([2],), id="not in place"),
        Case(function="absent", expected=None, id="absent"),
    ]
    verdict = CallGrader("solution", cases).grade(sandbox, {"solution.py": source})
    right = ["number", "none", "derived exception", "in place"]
    assert [name for name, outcome in verdict.per_test.items() if outcome is Outcome.PASSED] == right


def test_a_second_answer_to_a_case_voids_it(sandbox: Sandbox) -> None:
    forge = 'import json, os\nos.write(3, json.dumps({"item": {"case": 1, "value": 2}}).encode() + b"\\n")\n'
    cases = [Case(function="f", expected=1), Case(function="f", expected=2)]
    verdict = CallGrader("solution", cases).grade(sandbox, {"solution.py": forge + "def f():\n    return 1\n"})
    assert list(verdict.per_test.values()) == [Outcome.PASSED, Outcome.MISSING]
    assert Flag.UNEXPECTED_TESTS in verdict.flags


def test_cases_answered_before_a_hang_count(sandbox: Sandbox) -> None:
    source = "def f(n):\n    while n > 1:\n        pass\n    return n\n"
    cases = [Case(function="f", args=(n,), expected=n) for n in (0, 1, 2, 3)]
    verdict = CallGrader("solution", cases, limits=Limits(wall_s=0.4)).grade(sandbox, {"solution.py": source})
    assert (verdict.passed, verdict.status) == (2, Status.TIMEOUT)
    assert Flag.CANDIDATE_LOST in verdict.flags


def test_files_that_are_refused_score_nothing(sandbox: Sandbox, split: SplitPytestGrader) -> None:
    for files in ({"../solution.py": "x"}, {f"a{n}.py": "" for n in range(100)}, {}):
        assert CallGrader("solution", CASES).grade(sandbox, files).score == 0
        assert split.grade(sandbox, files).score == 0


def test_arguments_of_a_case_must_be_plain() -> None:
    with pytest.raises(UserError, match="plain data"):
        CallGrader("solution", [Case(function="f", args=(object(),))])


# ---------------------------------------------------------------- MutationGrader


def changed(old: str, new: str) -> dict[str, str]:
    source = HONEST["solution.py"].decode()
    assert old in source
    return {"solution.py": source.replace(old, new)}


@pytest.fixture(scope="module")
def mutation() -> MutationGrader:
    mutants = {
        "median of even": changed("(s[n // 2 - 1] + s[n // 2]) / 2", "s[n // 2]"),
        "median unsorted": changed("sorted(xs), len(xs)", "list(xs), len(xs)"),
        "roman without IV": changed('(4, "IV"), ', ""),
        "merge apart": changed("start <= merged", "start < merged"),
    }
    rewrites = {
        "shifted": {"solution.py": "import os\nfrom os import system\n" + changed("n // 2", "(n >> 1)")["solution.py"]}
    }
    return MutationGrader(
        "test_model.py", HONEST, ["solution"], mutants=mutants, rewrites=rewrites, limits=Limits(wall_s=0.8)
    )


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_scores_by_the_mutants_it_kills(sandbox: Sandbox, mutation: MutationGrader, name: str) -> None:
    (suite,) = load(HOSTILE / "suites" / name).values()
    verdict = mutation.grade(sandbox, {"test_model.py": suite, "conftest.py": "import os; os._exit(1)"})
    expected = {"honest_full": 1.0, "honest_half": 0.75}.get(name, 0.0)
    assert verdict.score == expected, verdict.evidence


def test_a_suite_that_is_missing_or_undecided_scores_nothing(sandbox: Sandbox, mutation: MutationGrader) -> None:
    assert mutation.grade(sandbox, {"other.py": ""}).score == 0
    (suite,) = load(HOSTILE / "suites" / "random_names").values()
    assert Flag.TESTS_UNSTABLE in mutation.grade(sandbox, {"test_model.py": suite}).flags


def test_modules_may_take_longer_to_import_than_a_call_may_last(sandbox: Sandbox) -> None:
    slow = "import time\ntime.sleep(0.4)\ndef double(n):\n    return 2 * n\n"
    mutants = {"triple": {"solution.py": slow.replace("2 *", "3 *")}}
    grader = MutationGrader("test_x.py", {"solution.py": slow}, ["solution"], mutants=mutants, rewrites={}, call_s=0.2)
    suite = "from solution import double\ndef test_a():\n    assert double(2) == 4\n"
    assert grader.grade(sandbox, {"test_x.py": suite}).full


def test_a_mutant_that_hangs_is_killed_by_a_test_that_calls_it(sandbox: Sandbox) -> None:
    mutants = {"endless": changed("return merged", "while True: pass"), "other": changed('"IV"', '"VI"')}
    grader = MutationGrader("test_m.py", HONEST, ["solution"], mutants=mutants, rewrites={}, call_s=0.3)
    suite = "from solution import merge\ndef test_m():\n    assert merge([]) == []\n"
    verdict = grader.grade(sandbox, {"test_m.py": suite})
    assert verdict.per_test == {"endless": Outcome.PASSED, "other": Outcome.FAILED}
