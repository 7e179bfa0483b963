"""The reward `math_verify`: what counts as the same mathematics, what earns nothing, and that no answer holds it up.

Runs where math-verify is installed and some isolation works.
"""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("math_verify", reason="pip install -r requirements-math.txt")

from agent_rl.agent.messages import Message
from agent_rl.envs.check_data import check_data
from agent_rl.envs.math.env import make_math_factory
from agent_rl.errors import SandboxError
from agent_rl.rewards import latex_answers, make_reward


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    try:
        latex_answers._sandbox()
    except SandboxError as error:
        pytest.skip(f"no isolation tier is available here: {error}")
    yield
    latex_answers._opened.pop().close()


def judged(prediction: str, answer: Any) -> dict[str, float]:
    return make_reward("math_verify")(prediction=prediction, trajectory=(), task={"answer": answer})[1]


RIGHT = [
    (r"\boxed{\frac{1}{2}}", "0.5"),
    (r"\frac12", r"\dfrac{2}{4}"),
    (r"The answer is $\frac{1}{2}$.", "1/2"),
    ("The answer is 12", "12"),
    ("5 square cm", "5"),
    (r"5\text{ cm}", "5"),
    ("24 + 48 = 72 #### 72", "24 + 48 = 72\n#### 72"),
    (r"\{2, 1\}", r"\{1,2\}"),
    ("[1, 2)", "[1,2)"),
    (r"(3,\infty) \cup (-\infty, 2)", r"(-\infty,2)\cup(3,\infty)"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"2\sqrt{2}", r"\sqrt{8}"),
    ("x = 5", "5"),
    ("0.333333", r"\frac{1}{3}"),
    (r"3 \times 10^8", "300000000"),
    (r"\text{(B)}", "B"),
    (r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ("5", ["4", 5]),
    ("0.5", 0.5),
]
WRONG = [
    ("6", "5"),
    ("-5", "5"),
    ("5 or 6", "5"),
    ("$4$ and $5$", "5"),
    ("(1,2)", "[1,2)"),
    ("(2,1)", "(1,2)"),
    ("0.333", "1/3"),
    ("12 and 13", "12"),
    ("x^2+1", "(x+1)^2"),
]
UNREAD = ["", "  ", "no such answer", "__import__('os').getcwd()", r"\frac{", "$" * 50, r"\boxed{" * 100, "1" * 20_001]


@pytest.mark.parametrize(("prediction", "answer"), RIGHT)
def test_the_same_mathematics_is_right_however_it_is_written(prediction: str, answer: Any) -> None:
    assert judged(prediction, answer) == {"math_verify": 1.0, "math_verify/unread": 0.0, "success": 1.0}


@pytest.mark.parametrize(("prediction", "answer"), WRONG)
def test_other_mathematics_is_wrong(prediction: str, answer: str) -> None:
    assert judged(prediction, answer) == {"math_verify": 0.0, "math_verify/unread": 0.0, "success": 0.0}


@pytest.mark.parametrize("prediction", UNREAD)
def test_what_cannot_be_read_earns_nothing_and_is_counted(prediction: str) -> None:
    assert judged(prediction, "5") == {"math_verify": 0.0, "math_verify/unread": 1.0, "success": 0.0}


@pytest.mark.parametrize("prediction", ["9^{9^{9^{9}}}", "(10^8)!", "{" * 3000, r"\sum_{i=1}^{10000000} i^{i}"])
def test_an_answer_without_end_is_stopped_by_its_time_of_computing(
    prediction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latex_answers, "LIMITS", replace(latex_answers.LIMITS, cpu_s=1))
    assert judged(prediction, "5")["math_verify/unread"] == 1.0
    assert judged("5", "5")["success"] == 1.0  # the next answer is none the worse


def test_answers_are_judged_from_many_threads_and_equal_ones_once() -> None:
    before = latex_answers._sandbox().memo.counters()["run"]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: judged(rf"\frac{{{n % 4}}}{{2}}", "1.5")["success"], range(16)))
    assert found == [0.0, 0.0, 0.0, 1.0] * 4
    assert latex_answers._sandbox().memo.counters()["run"] - before == 4


def test_questions_are_scored_by_it() -> None:
    factory = make_math_factory({"reward": "math_verify"}, 0)
    row = {"task_id": "1", "question": "Solve 2x = 1.", "answer": r"\frac{1}{2}"}
    outcomes = check_data(factory, [row], workers=1, group_by=lambda task: "")
    assert [outcome.is_as_expected for outcome in outcomes] == [True, True]
    env = factory()
    env.reset(row)
    result = env.step(Message.assistant("So 2x = 1.\nAnswer: $x = 0.5$"))
    assert (result.reward, result.reward_parts["success"]) == (1.0, 1.0)


def test_without_the_package_the_run_ends_at_its_start_with_the_line_that_installs_it() -> None:
    code = (
        "import sys; sys.modules['math_verify'] = None; sys.argv = ['agent-rl', 'train', '--config', "
        "'configs/math_grpo.yaml', 'env.options.reward=math_verify', '--preview-tasks', '1']\n"
        "from agent_rl.scripts.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    (line,) = done.stderr.strip().splitlines()
    assert (done.returncode, line[:7], "pip install math-verify" in line) == (2, "error: ", True)


def test_the_package_is_imported_in_the_sandbox_alone() -> None:
    code = (
        "import sys; from agent_rl.rewards import latex_answers as l; "
        "assert l.math_verify('1/2', '0.5')['success'] == 1.0; assert 'math_verify' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr == ""
