"""`code_exec`, files, `pytest_run` and `answer` of `tools.use`, in environments that know nothing of them."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from commands import ROOT, one_line_error, run_here
from fakes import save_tiny_model
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.config import ToolsConfig, load_config
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.envs.base import EnvFactory
from agent_rl.envs.opening import offer_tools, open_environment
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import ConfigError, SandboxError
from agent_rl.records import StopReason
from agent_rl.sandbox.limits import RunResult, Status
from agent_rl.tools.file_tools import FileWriteTool
from agent_rl.tools.toolset import Toolset
from agent_rl.tools.workspace_tools import printed

TASK = {"task_id": "t", "question": "What is 40 + 2?", "answer": "42"}
SUMS_TEST = "from sums import add\n\ndef test_add():\n    assert add(40, 2) == 42\n"
ALL = ("code_exec", "pytest_run", "file_write", "file_read", "answer")


@contextmanager
def started(*use: str, name: str = "math_qa", **options: object) -> Iterator[EnvFactory]:
    with offer_tools(make_env_factory(name, options), ToolsConfig(use=use)) as factory:
        try:
            factory.start()
        except SandboxError as error:
            pytest.skip(f"no isolation tier is available here: {error}")
        yield factory


def calling(name: str, **arguments: object) -> Message:
    return Message.assistant("", (ToolCall(name=name, arguments=arguments),))


def test_the_tools_of_an_episode_share_its_files_and_no_other_episode_sees_them() -> None:
    with started(*ALL) as factory, closing(factory()) as env, closing(factory()) as other:
        env.reset(TASK), other.reset(TASK)
        steps = [
            calling("pytest_run"),
            calling("file_write", path="sums.py", content="def add(a, b):\n    return a - b\n"),
            calling("file_write", path="test_sums.py", content=SUMS_TEST),
            calling("pytest_run"),
            calling("file_write", path="sums.py", content="def add(a, b):\n    return a + b\n"),
            calling("pytest_run"),
            calling("code_exec", code="from sums import add\nprint(add(40, 2))"),
            calling("file_read", path="sums.py"),
        ]
        told = [env.step(step) for step in steps]
        texts = [result.messages[0].content for result in told]
        assert [result.info["tool_errors"] for result in told] == [1, 0, 0, 1, 0, 0, 0, 0]
        assert texts[0].startswith("error: there are no tests yet")
        assert "assert 38 == 42" in texts[3] and "1 failed" in texts[3]
        assert "1 passed" in texts[5]
        assert texts[6:] == ["42", "def add(a, b):\n    return a + b\n"]
        assert other.step(steps[7]).info["tool_errors"] == 1
        ended = env.step(calling("answer", answer=42))
        assert (ended.terminated, ended.reward) == (True, 1.0)


@pytest.mark.parametrize(
    ("use", "prompt"),
    [
        (("answer",), "Solve the problem. Then call answer with the answer alone."),
        (
            ("calculator", "answer"),
            "Solve the problem; use the tools to calculate. Then call answer with the answer alone.",
        ),
    ],
)
def test_the_question_names_the_tool_that_ends_it(use: tuple[str, ...], prompt: str) -> None:
    with started(*use) as factory, closing(factory()) as env:
        assert env.reset(TASK)[0].content == prompt


def test_an_answer_is_what_rewards_of_prompts_compare() -> None:
    with (
        started("answer", name="prompts", reward="exact_match_reward") as factory,
        closing(factory()) as env,
    ):
        env.reset({"task_id": "t", "prompt": "Capital of France?", "answer": "Paris"})
        assert env.step(calling("answer", answer="Paris")).reward == 1.0


def test_other_libraries_names_are_the_same_tools() -> None:
    assert ToolsConfig(use=("python_executor",)).use == ("code_exec",)
    assert ToolsConfig(use=("google_search",)).use == ("search",)
    assert ToolsConfig.model_validate({"use": ["google_search"], "search": {"mode": "corpus"}}).search.mode == "corpus"
    with pytest.raises(ValueError, match="code_exec has no effect"):
        ToolsConfig.model_validate({"use": ["search"], "code_exec": {"workers": 3}})


def test_a_call_before_the_sandbox_runs_is_the_sandboxs_failure() -> None:
    toolset = Toolset(ToolsConfig(use=("code_exec",)))
    toolset.start()
    (tool,) = toolset.make(TASK)
    with pytest.raises(SandboxError, match="not running"):
        tool(code="print(1)")
    toolset.close()


def test_stderr_is_read_and_a_traceback_only_once() -> None:
    with started("code_exec") as factory, closing(factory()) as env:
        env.reset(TASK)
        programs = {
            "import sys\nprint('late', file=sys.stderr)\nprint(1)": "1\nstderr: late",
            "import sys\nprint('late', file=sys.stderr)\n1 / 0": "stderr: late\n"
            "error in line 3: ZeroDivisionError: division by zero",
            "import sys\nsys.exit('bye')": "error: bye",
            "open('made.txt', 'w').write('x')": "no output",
        }
        assert {code: env.step(calling("code_exec", code=code)).messages[0].content for code in programs} == programs
        assert env.step(calling("file_read", path="made.txt")).info["tool_errors"] == 1


@pytest.mark.parametrize("path", ["é" * 128 + ".py", "x/" + "é" * 128 + "/y", "test_a[1].py", "a::b/test_a.py"])
def test_a_name_that_no_run_can_write_or_test_is_refused(path: str) -> None:
    write = FileWriteTool({})
    result = write(path=path, content="x = 1\n")
    assert not result.ok and result.text.startswith("error: ") and write.files == {}
    assert write(path="é" * 126 + ".py", content="").ok and write(path="data[1].txt", content="").ok


@given(st.text(max_size=50), st.text(max_size=50), st.integers(1, 60))
def test_what_a_program_prints_has_bounded_length(out: str, err: str, chars: int) -> None:
    lines = printed(RunResult(status=Status.OK, stdout=out, stderr=err), chars)
    assert sum(map(len, lines)) <= chars + len("...stderr: ...")


def test_math_by_python_is_solved_by_blocks_and_by_calls(tmp_path) -> None:
    here = [f"model.path={save_tiny_model(tmp_path / 'model')}", "policy.type=minimind"]
    config = load_config(ROOT / "configs/math_python_grpo.yaml", here)
    assert load_config(ROOT / "configs/math_python_grpo.yaml", [*here, "agent.type=code"]).agent.type == "code"
    with open_environment(config) as factory, closing(factory()) as env:
        try:
            factory.start()
        except SandboxError as error:
            pytest.skip(f"no isolation tier is available here: {error}")
        opening = env.reset(TASK)
        assert "use the tools" in opening[0].content
        assert env.step(calling("code_exec", code="print(40 + 2)")).messages[0].content == "42"
        assert env.step(Message.assistant("Answer: 42")).reward == 1.0
        assert env.truncate(StopReason.MAX_TURNS).terminated


@pytest.mark.parametrize("agent", ["hf", "code"])
def test_math_by_python_trains_a_step(tmp_path, agent: str) -> None:
    """With a model that solves none of it: configuration, sandbox and records of the whole path."""
    small = ["run.name=math", f"run.output_dir={tmp_path}", "run.device=cpu", f"agent.type={agent}"]
    small += ["model.path=model/math_minimind", "policy.type=minimind", "policy.max_new_tokens=16"]
    small += ["policy.max_context=640", "train.steps=1", "train.warmup_steps=0", "rollout.groups_per_step=2"]
    small += ["rollout.group_size=2", "checkpoint.every=0"]
    text = (ROOT / "configs/math_python_grpo.yaml").read_text(encoding="utf-8")
    (tmp_path / "math.yaml").write_text(text.replace("temperatures: [0.0]\n  every: 20", "temperatures: []"))
    config = load_config(tmp_path / "math.yaml", small)
    with GRPOTrainer.from_config(config) as trainer:
        trainer.train()
    about = json.loads((tmp_path / "math/environment.json").read_text(encoding="utf-8"))
    assert "code_exec" in json.dumps(about)


# agent-rl tools


def test_every_tool_is_listed_with_what_a_model_is_told() -> None:
    lines = run_here("tools", "list").stdout.splitlines()
    listed = dict(line.split(": ", 1) for line in lines)
    assert {"calculator", "search", *ALL} <= set(listed)
    assert listed["calculator"] == "Calculate an arithmetic expression."
    assert "google_search is search" in listed["by other names"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["calculator", "15% of 80"], "12"),
        (["calculator", '{"expression": "2 + 3"}'], "5"),
        (["python_executor", "print(2**10)"], "1024"),
        (["answer", "7"], "answered"),
    ],
)
def test_a_tool_is_tried_by_hand(words: list[str], text: str) -> None:
    done = run_here("tools", "try", *words)
    assert (done.returncode, done.stdout.strip()) == (0, text), done.stderr


def test_a_search_is_tried_with_the_passages_of_a_configuration() -> None:
    done = run_here("tools", "try", "search", "Corekin", "--config", "configs/search_qa_grpo.yaml")
    assert done.returncode == 0 and done.stdout.startswith("[1] ")


def test_a_call_that_fails_and_wrong_words_have_different_exit_codes(monkeypatch) -> None:
    assert run_here("tools", "try", "calculator", "1 / 0").returncode == 1
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)
    for words, part in [
        (["search", "x"], "TAVILY_API_KEY"),
        (["calculatr", "1"], "'calculator'"),
        (["file_write", "x"], "path, content"),
        (["pytest_run", "x"], "takes no argument"),
        (["calculator", '{"expression": "1"'], "no JSON object"),
    ]:
        assert part in one_line_error(run_here("tools", "try", *words))


def test_a_bug_of_ones_own_tool_is_shown_with_its_line(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        'from agent_rl import tool\n\n\n@tool\ndef lookup(key: str) -> str:\n    """Look up."""\n    return {}[key]\n'
    )
    done = run_here("tools", "try", f"{mine}:lookup", "z")
    assert (done.returncode, done.stdout.strip()) == (1, "error: lookup: KeyError: 'z'")
    assert f"{mine}:7 in lookup" in done.stderr


def test_the_configuration_of_a_code_agent_with_other_tools_is_refused() -> None:
    with pytest.raises(ConfigError, match="offered twice"):
        offer_tools(make_env_factory("code_exec", {}), ToolsConfig(use=("code_exec",)))
