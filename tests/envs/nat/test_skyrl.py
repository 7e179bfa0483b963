"""The NAT environment behind SkyRL's own interface: `skyrl_gym.make`, text in, messages and rewards out.

Runs where skyrl-gym is installed and `.venv-nat` is there; the reference project is the right answer.
"""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from agent_rl.agent.messages import ToolCall
from agent_rl.agent.tool_parser import dump_call
from agent_rl.envs.nat.factory.generate import generate_specs
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.errors import ConfigError, DataError

skyrl_gym = pytest.importorskip("skyrl_gym", reason="needs SkyRL's gym: pip install skyrl-gym")
skyrl = importlib.import_module("agent_rl.envs.nat.skyrl")

SPEC = next(generate_specs(3, ["sft"], families=["unit_converter"], levels=[1]))
TASK = SPEC.model_dump(mode="json")
FILES = render_project(SPEC)
FULL_REWARD = 0.3 + 0.3 + 0.4 + 1.0
"""Tools, integration, workflow, and the bonus for a complete agent; the one for few turns comes on top."""


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    skyrl.register({"checkers": 1, "seed": 5})
    yield
    skyrl_gym.envs.registration.deregister(skyrl.ENV_ID)


def make(**extras: Any) -> Any:
    return skyrl_gym.make(skyrl.ENV_ID, env_config={}, extras={"spec": json.dumps(TASK), "max_turns": 4, **extras})


def reply_with(*calls: tuple[str, dict[str, str]], text: str = "") -> str:
    """What a model writes to make these calls."""
    blocks = [f"<tool_call>\n{dump_call(ToolCall(name=name, arguments=given))}\n</tool_call>" for name, given in calls]
    return "\n".join([text, *blocks])


def writes(files: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    return [("file_write", {"path": path, "content": content}) for path, content in files.items()]


def test_the_first_messages_are_those_of_the_row_and_hold_the_request_and_the_tools() -> None:
    row = skyrl.dataset_row(TASK)
    prompt, metadata = make(spec=row["spec"]).init(row["prompt"])
    assert prompt == row["prompt"]
    assert [message["role"] for message in prompt] == ["system", "user"]
    assert prompt[1]["content"] == SPEC.request
    tools = prompt[0]["content"].partition("<tools>\n")[2].partition("\n</tools>")[0]
    names = [json.loads(line)["function"]["name"] for line in tools.split("\n")]
    assert names == ["file_write", "file_read", "pytest_run", "nat_check", "submit"]
    assert '<tool_call>\n{"name": <function-name>' in prompt[0]["content"]
    assert (row["env_class"], metadata) == ("nat_agent_creation", {"task_id": SPEC.task_id})


def test_a_complete_project_is_a_success_with_the_full_reward() -> None:
    env = make()
    env.init([])
    first = env.step(reply_with(*writes(FILES), ("pytest_run", {}), text="All files:"))
    assert (first["reward"], first["done"], first["metadata"]["tool_calls"]) == (0.0, False, len(FILES) + 1)
    (observation,) = first["observations"]
    assert observation["role"] == "user"
    replies = observation["content"].removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")
    assert replies.split("\n</tool_response>\n<tool_response>\n") == [*(f"wrote {path}" for path in FILES), "2 passed"]
    last = env.step(reply_with(("submit", {})))
    assert (last["observations"], last["done"]) == ([], True)
    assert last["metadata"]["problems"] == []
    assert last["metadata"]["success"] == 1.0
    assert last["reward"] == pytest.approx(FULL_REWARD + 0.3 * (1 - 1 / 30))
    assert last["metadata"]["reward_parts"]["complete"] == 1.0
    metrics = env.get_metrics()
    assert (metrics["success"], metrics["num_turns"]) == (1.0, 2)
    env.close()
    env.close()


def test_a_project_with_wrong_logic_is_no_success_and_reports_why() -> None:
    env = make(spec=TASK)
    env.init([])
    wrong = {**FILES, SPEC.logic_path: FILES[SPEC.logic_path].replace("return f", "return 'x' + f")}
    end = env.step(reply_with(*writes(wrong), ("submit", {})))
    assert (end["done"], end["metadata"]["success"]) == (True, 0.0)
    assert 0.0 < end["reward"] < 1.0
    assert end["metadata"]["problems"]
    assert env.get_metrics()["success"] == 0.0


def test_the_completion_marker_hands_in_the_project() -> None:
    env = make()
    env.init([])
    env.step(reply_with(*writes(FILES)))
    end = env.step("The agent is done. AGENT_CREATION_COMPLETE")
    assert (end["done"], end["metadata"]["success"]) == (True, 1.0)


def test_the_last_turn_scores_what_is_there_but_an_agent_that_was_not_handed_in_is_no_success() -> None:
    env = make(max_turns=1)
    env.init([])
    end = env.step(reply_with(*writes(FILES)))
    assert (end["done"], end["observations"], end["metadata"]["success"]) == (True, [], 0.0)
    assert end["metadata"]["stop_reason"] == "max_turns"
    assert end["reward"] == pytest.approx(1.0)
    assert end["metadata"]["tool_calls"] == len(FILES)


def test_a_broken_call_and_plain_text_are_answered() -> None:
    env = make()
    env.init([])
    broken = env.step('<tool_call>\n{"name": "submit"\n</tool_call>')
    assert broken["observations"][0]["content"].startswith("<tool_response>\nerror: ")
    assert (broken["metadata"]["tool_errors"], broken["done"]) == (1, False)
    plain = env.step("Hello!")
    assert plain["observations"] == [{"role": "user", "content": "Write the files with file_write, then call submit."}]
    assert "success" not in plain["metadata"]
    assert env.get_metrics() == {"success": 0.0, "num_turns": 2}


def test_a_lone_surrogate_that_a_project_raises_is_read_as_a_question_mark() -> None:
    env = make()
    env.init([])
    raising = {**FILES, SPEC.register_path: 'raise ValueError("<\\ud800>")'}
    step = env.step(reply_with(*writes(raising), ("nat_check", {})))
    assert "<?>" in step["observations"][0]["content"]


@pytest.mark.parametrize(
    ("extras", "sentence"),
    [
        ({"max_turns": 3}, r"extras: no column 'spec' with the task, found max_turns; make the rows with"),
        ({"spec": "{"}, r"extras: 'spec' is not valid JSON \(Expecting property name"),
        ({"spec": "[1]"}, r"extras: 'spec' must be a task as a dictionary or its JSON text, got list"),
    ],
)
def test_a_row_without_a_task_is_refused(extras: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        skyrl_gym.make(skyrl.ENV_ID, env_config={}, extras=extras)


def test_a_task_of_another_environment_and_an_unknown_option_are_refused() -> None:
    with pytest.raises(DataError, match="no NAT task, but a row of task_id"):
        skyrl.dataset_row({"task_id": "t"})
    with pytest.raises(ConfigError, match=r"env\.options\.chekers.*did you mean 'checkers'"):
        skyrl.dataset_row(TASK, {"chekers": 1})
    with pytest.raises(ConfigError, match="env_config is a int"):
        skyrl_gym.make(skyrl.ENV_ID, env_config=3, extras={"spec": TASK})


def test_an_omegaconf_section_overrides_what_was_registered() -> None:
    from omegaconf import OmegaConf

    section = OmegaConf.create({"reward": {"complete": 7.0}})
    env = skyrl_gym.make(skyrl.ENV_ID, env_config=section, extras={"spec": TASK})
    env.init([])
    end = env.step(reply_with(*writes(FILES), ("submit", {})))
    assert end["reward"] == pytest.approx(FULL_REWARD + 6.0 + 0.3)


def test_episodes_with_equal_settings_share_one_factory_which_samples_the_hidden_cases_from_the_seed() -> None:
    for _ in range(2):
        make().init([])
    factories = [each for each in skyrl._factories.values() if each.options.reward.complete == 1.0]
    assert [(each.options.checkers, each.seed) for each in factories] == [(1, 5)]


def test_the_module_needs_no_torch_and_names_what_it_needs() -> None:
    def run(code: str) -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr

    assert run("import sys, agent_rl.envs.nat.skyrl\nassert 'torch' not in sys.modules") == ""
    missing = run("import sys\nsys.modules['skyrl_gym'] = None\nimport agent_rl.envs.nat.skyrl")
    assert missing.splitlines()[-1].startswith("ImportError: agent_rl.envs.nat.skyrl needs SkyRL's gym (")
    assert missing.splitlines()[-1].endswith("run `pip install skyrl-gym`")
