"""Grade tests that a model wrote: they must pass on right modules and fail on wrong ones.

The roles of `graders.py` are swapped: the modules are ours and trusted, the tests are not. The tests run in a sandbox
that holds nothing but themselves, on proxies for the modules, so that they can detect a mutant only by its behaviour.
"""

import fnmatch
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from agent_rl.errors import UserError
from agent_rl.sandbox.chance import may_vary
from agent_rl.sandbox.freeze import Flag, screen
from agent_rl.sandbox.grading import Files, all_with, check_modules, judge_call, outcomes_of
from agent_rl.sandbox.guest.codec import LATE
from agent_rl.sandbox.limits import JobResult, Limits, Status
from agent_rl.sandbox.sandbox import Call, Sandbox
from agent_rl.sandbox.verdict import Outcome, Verdict
from agent_rl.sandbox.workspace import MAX_FILES, WorkspaceError, validate_files

_BATCH = 8
"""Clients of one linked run; each adds seven descriptors to the request."""
_TIMES_IN_DOUBT = 3


class MutationGrader:
    """Scores the test file at `tests_path` by the share of `mutants` it kills.

    First it must pass, with at least one test and without skips, on the reference and on every rewrite; else the score
    is 0. `mutants` and `rewrites` are the files that differ from `reference`, by name:
    `mutants={"off_by_one": {"solution.py": "..."}}`. More than `max_tests` tests score 0; fewer or more change nothing.

    Runs come in a random order, and nothing in them distinguishes a mutant from the reference. The reference is judged
    twice. Every version is judged three times where the suite could decide by chance (`chance.py`) or a call gave no
    usable answer, which may be a matter of time. A suite that does not always say the same of a version scores 0: with
    m = 4 mutants a coin earns 0.0022 at most, (1-p)^3 p^3 (p^3 + (1-p)^3)^3 as one that falls anew each time, or
    k/4 C(4, k) / C(15, 3k) as one that falls on "wrong" in 3k runs of the 15, such as a clock.
    """

    def __init__(
        self,
        tests_path: str,
        reference: Files,
        modules: Sequence[str],
        *,
        mutants: Mapping[str, Files],
        rewrites: Mapping[str, Files],
        limits: Limits | None = None,
        call_s: float = 0.5,
        max_tests: int = 100,
    ) -> None:
        check_modules(modules)
        if not mutants:
            raise UserError("MutationGrader got no mutants; give at least one wrong version of the reference")
        if not fnmatch.fnmatchcase(tests_path.rpartition("/")[2], "test_*.py"):
            raise UserError(f"tests_path {tests_path!r} is no test file for pytest; name it test_something.py")
        self._tests_path, self._modules, self._max_tests = tests_path, list(modules), max_tests
        self._limits, self._call_s = limits, call_s
        self._mutants = {name: {**reference, **files} for name, files in mutants.items()}
        self._controls = {"reference": dict(reference)}
        self._controls |= {f"rewrite {name}": {**reference, **files} for name, files in rewrites.items()}

    def grade(self, sandbox: Sandbox, files: Files) -> Verdict:
        """Grade one test file. Raises SandboxError when the sandbox itself failed."""
        if self._tests_path not in files:
            return self._zero(Status.ERROR, (), f"there is no file {self._tests_path!r}")
        tests = {self._tests_path: files[self._tests_path]}
        versions = [self._modules, self._controls, self._mutants]
        limits = [self._call_s, self._max_tests, asdict(self._limits or sandbox.limits)]

        def run() -> tuple[Verdict, bool]:
            verdict = self._grade(sandbox, tests)
            return verdict, verdict.is_settled

        return sandbox.memo.answer(["mutation", tests, *versions, *limits], run)

    def _grade(self, sandbox: Sandbox, tests: Files) -> Verdict:
        try:
            validate_files(tests)
        except WorkspaceError as error:
            return self._zero(Status.ERROR, (), str(error))
        flags = screen(tests[self._tests_path])
        runs = self._run_all(sandbox, tests)
        every = [run for of_version in runs.values() for run in of_version]
        verdict = self._verdict(runs, flags)
        is_settled = all(run.is_settled and not _is_late(run) for run in every)
        return replace(verdict, is_settled=is_settled and Flag.TESTS_UNSTABLE not in verdict.flags)

    def _verdict(self, runs: Mapping[str, Sequence[JobResult]], flags: tuple[Flag, ...]) -> Verdict:
        unstable = (*flags, Flag.TESTS_UNSTABLE)
        for name in self._controls:
            problems = [(self._problem(run), run) for run in runs[name]]
            if found := [(problem, run) for problem, run in problems if problem]:
                problem, run = found[0]
                has_changed = run.status is Status.OK and len(found) < len(problems)
                return self._zero(run.status, unstable if has_changed else flags, f"on the {name}: {problem}")
        if len({frozenset(outcomes_of(run)) for name in self._controls for run in runs[name]}) > 1:
            return self._zero(Status.OK, unstable, "the tests collected are not always the same")
        kills = {name: {_kill(run) for run in runs[name]} for name in self._mutants}
        if changed := [name for name in kills if len(kills[name]) > 1]:
            return self._zero(Status.OK, unstable, f"the tests do not always say the same of {changed[0]}")
        per_test = {name: kill.pop() for name, kill in kills.items()}
        survivors = [name for name, outcome in per_test.items() if outcome is not Outcome.PASSED]
        return Verdict(per_test=per_test, flags=flags, evidence=f"survived: {', '.join(survivors) or 'none'}")

    def _zero(self, status: Status, flags: tuple[Flag, ...], evidence: str) -> Verdict:
        return replace(all_with(self._mutants, Outcome.FAILED, status, flags, evidence), holds=False)

    def _problem(self, run: JobResult) -> str | None:
        """Why this run of the tests on a right module is not a pass."""
        outcomes = outcomes_of(run)
        if run.status is not Status.OK:
            return f"the tests did not end by themselves: {run.error}"
        if not outcomes:
            return "no test ran"
        if len(outcomes) > self._max_tests:
            return f"{len(outcomes)} tests are more than {self._max_tests}"
        if bad := [name for name, outcome in outcomes.items() if outcome != "passed"]:
            return f"{len(bad)} tests did not pass, such as {bad[0]!r}"
        return None

    def _run_all(self, sandbox: Sandbox, tests: Files) -> dict[str, list[JobResult]]:
        """Runs of the tests on each version, as many as it takes to know that they would always end like this."""
        versions = {**self._controls, **self._mutants}
        text = tests[self._tests_path]
        runs: dict[str, list[JobResult]] = {name: [] for name in versions}
        size = max(1, min(_BATCH, MAX_FILES // max(map(len, versions.values()))))

        def run_on(names: list[str]) -> None:
            random.SystemRandom().shuffle(names)
            for start in range(0, len(names), size):
                batch = names[start : start + size]
                for name, run in zip(batch, self._run_batch(sandbox, tests, [versions[n] for n in batch]), strict=True):
                    runs[name].append(run)

        if may_vary(text.decode("utf-8", "replace") if isinstance(text, bytes) else text, self._modules):
            run_on([*versions] * _TIMES_IN_DOUBT)
            return runs
        run_on([*versions, *self._controls])
        if any(_is_unanswered(run) for name in versions for run in runs[name]):
            run_on([name for name in versions for _ in range(_TIMES_IN_DOUBT - len(runs[name]))])
        return runs

    def _run_batch(self, sandbox: Sandbox, tests: Files, versions: Sequence[Files]) -> tuple[JobResult, ...]:
        limits = self._limits or sandbox.limits
        folders = [secrets.token_hex(8) for _ in versions]
        files = {
            f"{folder}/{path}": text
            for folder, each in zip(folders, versions, strict=True)
            for path, text in each.items()
        }
        request = {"variants": folders, "modules": self._modules, "call_s": self._call_s}
        client = judge_call(tests, self._modules, limits, self._call_s, None)
        server = Call(job="serve_modules", files=files, request=request)
        return sandbox.call_linked(server, [client] * len(versions), limits)[1]


def _is_unanswered(run: JobResult) -> bool:
    """Whether some call of these tests gave no usable answer, because it took too long or for another reason."""
    return isinstance(run.result, dict) and bool(run.result.get("lost") or run.result.get("failures"))


def _is_late(run: JobResult) -> bool:
    return isinstance(run.result, dict) and run.result.get("lost") == LATE


def _kill(run: JobResult) -> Outcome:
    """PASSED when a test that ran failed on the mutant. A run that did not end by itself kills nothing."""
    outcomes = outcomes_of(run).values()
    if run.status is not Status.OK or not outcomes:
        return Outcome.MISSING
    return Outcome.PASSED if any(outcome in ("failed", "error") for outcome in outcomes) else Outcome.FAILED
