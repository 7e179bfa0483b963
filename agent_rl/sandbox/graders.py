"""Graders: turn the files a model wrote into a verdict that its code cannot forge.

`CallGrader` compares answers on the host, `SplitPytestGrader` runs tests in another sandbox than the candidate. What a
process that ran candidate code reports is only ever compared with what the host expects. A candidate that crashes,
hangs or floods fails its tests; only a failure of the sandbox raises SandboxError. `MutationGrader`, for model-written
tests, is in `mutation.py`.
"""

import builtins
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agent_rl.errors import SandboxError, UserError
from agent_rl.sandbox.freeze import Flag
from agent_rl.sandbox.grading import (
    Files,
    all_with,
    by_file,
    check_modules,
    compare_ids,
    judge_call,
    outcomes_of,
    take,
)
from agent_rl.sandbox.guest.codec import LATE, CodecError, Hashing, decode, encode, same
from agent_rl.sandbox.judge_names import check_imports, exports_of, star_imported
from agent_rl.sandbox.limits import JobResult, Limits, Status
from agent_rl.sandbox.sandbox import Call, Sandbox
from agent_rl.sandbox.verdict import Outcome, Verdict

_NOT_RUN = Status.ERROR
_SHORT = reprlib.Repr()
"""For lines about answers, which may be of any size."""
_COMPARING = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RuntimeError)
"""What a task's own `compare` may raise on a value that it did not expect."""
_NO_REPORT = "the judge could report without it only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: `Case(function="median", args=([3, 1, 2],), expected=2)`.

    With `raises` (the name of a built-in exception) the call must raise it or a class derived from it, of which only
    the nearest built-in class counts: one derived from many is none of the others. `expected_args` holds the arguments
    as they must be after the call, for functions that change them in place.
    """

    function: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    expected: Any = None
    raises: str | None = None
    expected_args: tuple[Any, ...] | None = None
    id: str = ""
    """By default the function's name and the number of the case."""


class CallGrader:
    """Calls functions of one module on cases and compares the answers on the host: the default for function tasks.

    `compare(actual, expected)` sees decoded plain data, and `Opaque` for anything else; `functools.partial(same,
    rel_tol=1e-9)` allows for rounding. `keep` declares the files of the task, see `freeze`.
    """

    def __init__(
        self,
        module: str,
        cases: Sequence[Case],
        *,
        compare: Callable[[Any, Any], bool] = same,
        limits: Limits | None = None,
        keep: Collection[str] | None = None,
    ) -> None:
        check_modules([module])
        self._module, self._compare, self._limits, self._keep = module, compare, limits, keep
        self._cases = {case.id or f"{case.function}[{number}]": case for number, case in enumerate(cases)}
        if len(self._cases) != len(cases) or not cases:
            raise UserError("a CallGrader needs one case or more, each with an id of its own")
        try:
            self._requests = [_case_request(case) for case in cases]
        except CodecError as error:
            raise UserError(f"the arguments of a case must be plain data within the caps: {error}") from None

    def grade(self, sandbox: Sandbox, files: Files) -> Verdict:
        """Grade one candidate. Raises SandboxError when the sandbox itself failed."""
        allowed, flags, refusal = take(files, self._keep)
        if refusal:
            return all_with(self._cases, Outcome.MISSING, _NOT_RUN, flags, refusal)
        run = self._run(sandbox, allowed)
        answers: dict[int, list[dict[str, Any]]] = {}
        strays = 0
        for item in run.items:
            number = item.get("case") if isinstance(item, dict) else None
            if type(number) is int and 0 <= number < len(self._cases):
                answers.setdefault(number, []).append(item)
            else:
                strays += 1
        per_test, hashing = {}, Hashing()
        notes = [run.error] if run.error else []
        for number, (name, case) in enumerate(self._cases.items()):
            given = answers.get(number, [])
            per_test[name] = self._outcome(case, given[0], hashing) if len(given) == 1 else Outcome.MISSING
            strays += len(given) > 1
            if per_test[name] is Outcome.FAILED:
                notes.append(f"{name}: {_SHORT.repr({k: v for k, v in given[0].items() if k != 'case'})[:200]}")
        flags += (Flag.UNEXPECTED_TESTS,) if strays else ()
        flags += (Flag.CANDIDATE_LOST,) if len(answers) < len(self._cases) else ()
        return Verdict(per_test=per_test, status=run.status, flags=flags, evidence="\n".join(notes[:5]))

    def _run(self, sandbox: Sandbox, files: Files) -> JobResult:
        request = {"module": self._module, "cases": self._requests}

        def run() -> tuple[JobResult, bool]:
            result = sandbox.call("call_cases", files, self._limits, **request)
            return result, result.is_settled

        return sandbox.memo.answer(["call_cases", request, asdict(self._limits or sandbox.limits), dict(files)], run)

    def _outcome(self, case: Case, answer: dict[str, Any], hashing: Hashing) -> Outcome:
        """Of one answer, which is a value or an exception and never both."""
        if ("value" in answer) == ("raised" in answer):
            return Outcome.FAILED
        if case.raises is not None:
            return Outcome.PASSED if _is_kind(answer.get("raised"), case.raises) else Outcome.FAILED
        try:
            is_right = "value" in answer and self._compare(decode(answer["value"], hashing=hashing), case.expected)
            if is_right and case.expected_args is not None:
                is_right = self._compare(decode(answer.get("args"), hashing=hashing), case.expected_args)
        except (CodecError, *_COMPARING):
            return Outcome.FAILED
        return Outcome.PASSED if is_right is True else Outcome.FAILED


def _is_kind(raised: Any, expected: str) -> bool:
    """Whether the built-in exception of that name is the one expected or derived from it."""
    kinds = [getattr(builtins, name, None) for name in (raised, expected) if isinstance(name, str)]
    return len(kinds) == 2 and all(isinstance(kind, type) for kind in kinds) and issubclass(*kinds)


def _case_request(case: Case) -> dict[str, Any]:
    args = encode(tuple(case.args), opaque=_refuse_opaque)
    kwargs = encode(dict(case.kwargs), opaque=_refuse_opaque)
    return {"function": case.function, "args": args, "kwargs": kwargs, "want_args": case.expected_args is not None}


def _refuse_opaque(value: Any) -> list[Any]:
    raise CodecError(f"{type(value).__name__} is not plain data")


class SplitPytestGrader:
    """Runs `tests` in one sandbox and the candidate's `modules` in another: the default for pytest suites.

    In the tests `from solution import f` gives a proxy that calls over a link. Answers must come back as plain data;
    objects can be called and their methods used, not compared (see `guest/module_proxy.py`). The score counts the
    `expected_ids`, recorded with `SplitPytestGrader.record`, that the judge reports as passed. With
    `SplitPytestGrader.by_file` a test is a file, whatever it holds, and nothing is recorded.

    `from solution import *` takes the names in `exports["solution"]` alone, recorded too. A call may change the lists,
    dicts and sets it is given, as in one process: in `assert total(xs) == sum(xs)` the candidate says what is summed,
    so give each call its own copy. `call_s` bounds one call, and `limits.wall_s` the whole run of the tests.
    """

    def __init__(
        self,
        tests: Files,
        expected_ids: Collection[str],
        modules: Sequence[str],
        *,
        limits: Limits | None = None,
        call_s: float = 2.0,
        keep: Collection[str] | None = None,
        exports: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        check_modules(modules)
        if not expected_ids:
            raise UserError("SplitPytestGrader got no expected test ids; record them with SplitPytestGrader.record")
        if unknown := sorted(star_imported(tests, modules) - set(exports or {})):
            raise UserError(
                f"the tests have `from {unknown[0]} import *`, which could take any name; "
                "make the grader with SplitPytestGrader.record, or import by name"
            )
        self._exports: Mapping[str, Collection[str]] | None = dict(exports or {})
        self._tests, self._modules = dict(tests), list(modules)
        self._expected = frozenset(expected_ids)
        self._limits, self._call_s, self._keep = limits, call_s, keep
        self._is_by_file = False

    @classmethod
    def by_file(cls, tests: Files, modules: Sequence[str], **options: Any) -> "SplitPytestGrader":
        """Make a grader whose tests are the files of `tests`: one passes where something in it does, and all of it.

        A file that fails as it is loaded does not keep the others from being judged.
        """
        grader = cls(tests, list(tests), modules, **options)
        grader._is_by_file = True
        return grader

    @classmethod
    def record(
        cls, sandbox: Sandbox, tests: Files, reference: Files, modules: Sequence[str], **options: Any
    ) -> "SplitPytestGrader":
        """Make the grader from a reference solution, which must pass every test, while empty modules pass none.

        Raises UserError with the tests that contradict this.
        """
        check_imports(tests, modules)
        grader = cls(tests, ["recording"], modules, **options, exports=dict.fromkeys(modules, ()))
        grader._exports = None  # the reference says which
        report, *_ = grader._judge(sandbox, dict(reference))
        grader._exports = exports_of(report.result, tests, modules)
        outcomes = outcomes_of(report)
        if not outcomes:
            raise UserError(f"the tests {sorted(tests)} hold nothing that pytest collects; give at least one test")
        if bad := sorted(name for name, outcome in outcomes.items() if outcome != "passed"):
            why = "; ".join(map(str, report.result["failures"][:3])) or "see the assertions"
            raise UserError(
                f"the reference solution must pass every test, but {bad[:5]} did not ({why}); fix either of them"
            )
        empty = {path: "" for path in reference if path.endswith(".py")}
        passed_empty = [
            n for n, outcome in outcomes_of(grader._judge(sandbox, empty)[0]).items() if outcome == "passed"
        ]
        if passed_empty:
            raise UserError(f"tests {sorted(passed_empty)[:5]} pass without any solution; make them call it")
        grader._expected = frozenset(outcomes)
        return grader

    @property
    def expected_ids(self) -> tuple[str, ...]:
        return tuple(sorted(self._expected))

    @property
    def exports(self) -> Mapping[str, Collection[str]]:
        return dict(self._exports or {})

    def grade(self, sandbox: Sandbox, files: Files) -> Verdict:
        """Grade one candidate. Raises SandboxError when the sandbox or the judge failed by itself."""
        allowed, flags, refusal = take(files, self._keep)
        if refusal:
            return all_with(self._expected, Outcome.MISSING, _NOT_RUN, flags, refusal)
        report, candidate, lost = self._judged(sandbox, allowed)
        outcomes = by_file(outcomes_of(report)) if self._is_by_file else outcomes_of(report)
        flags += (Flag.CANDIDATE_LOST,) if lost else ()
        flags += (Flag.ANSWER_NOT_PLAIN,) if report.result["opaque"] else ()
        notes = [*map(str, report.result["failures"]), *([lost] if lost else [])]
        status = _end_of(candidate, lost) if lost else Status.OK
        return compare_ids(self._expected, outcomes, status, flags, "\n".join(notes))

    def _judged(self, sandbox: Sandbox, files: Files) -> tuple[JobResult, JobResult, str]:
        """As `_judge`, equal files once."""
        limits = self._limits or sandbox.limits
        judge = self._judge_call(limits)
        question = ["judge_suite", judge.request, self._tests, asdict(limits), dict(files)]

        def run() -> tuple[tuple[JobResult, JobResult, str], bool]:
            report, candidate, lost = self._judge(sandbox, files)
            is_settled = report.is_settled and candidate.is_settled and lost not in (LATE, _NO_REPORT)
            return (report, candidate, lost), is_settled

        return sandbox.memo.answer(question, run)

    def _judge(self, sandbox: Sandbox, candidate_files: Files) -> tuple[JobResult, JobResult, str]:
        """The judge's report, the candidate's run, and why the judge gave it up, if it did.

        A judge that never reports is an error of ours, after a retry. Should it report as soon as the candidate is
        replaced by nothing, then the candidate prevented it.
        """
        for _ in range(2):
            candidate, (judge,) = self._run(sandbox, candidate_files)
            if _is_report(judge):
                return judge, candidate, judge.result["lost"]
        _, (judge,) = self._run(sandbox, {})
        if _is_report(judge):
            return judge, candidate, _NO_REPORT
        raise SandboxError(f"the judge of {sorted(self._tests)} gave no verdict: {judge.error}; {judge.stderr[-300:]}")

    def _run(self, sandbox: Sandbox, candidate_files: Files) -> tuple[JobResult, tuple[JobResult, ...]]:
        limits = self._limits or sandbox.limits
        server = Call(
            job="serve_modules",
            files=candidate_files,
            request={"variants": ["."], "modules": self._modules, "call_s": None},
        )
        return sandbox.call_linked(server, [self._judge_call(limits)], limits)

    def _judge_call(self, limits: Limits) -> Call:
        return judge_call(self._tests, self._modules, limits, self._call_s, self._exports, by_file=self._is_by_file)


def _is_report(judge: JobResult) -> bool:
    return judge.status is Status.OK and isinstance(judge.result, dict) and "outcomes" in judge.result


def _end_of(candidate: JobResult, lost: str) -> Status:
    """How a candidate ended that the judge stopped waiting for: at a limit of the sandbox's, late, or by itself."""
    if candidate.status in (Status.TIMEOUT, Status.MEMORY, Status.OUTPUT_LIMIT):
        return candidate.status
    return Status.TIMEOUT if lost == LATE else Status.CRASHED
