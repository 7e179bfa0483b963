"""Environments with Gymnasium's methods: own classes, old ones, ids of the package."""

import sys
from pathlib import Path

import numpy
import pytest
from fakes import ScriptedPolicy
from foreign_fakes import Guess

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.envs.registry import make_env_factory
from agent_rl.records import StopReason
from agent_rl.rollout.episode import EpisodeLimits, run_episode

LIMITS = EpisodeLimits(max_new_tokens=50)
GUESS = {"make": "foreign_fakes:Guess"}


def test_an_environment_of_ones_own_plays_an_episode_and_is_closed() -> None:
    factory = make_env_factory("gymnasium", GUESS)
    policy = ScriptedPolicy(["3", "9", "7"])
    made = run_episode(
        policy, factory(), {"task_id": "t", "seed": 17}, group_id="g", seed=0, limits=LIMITS, temperature=1.0
    )
    assert [[each.content for each in turn.env_messages] for turn in made.turns] == [["higher"], ["lower"], []]
    assert (made.reward, made.stop_reason) == (1.0, StopReason.FINISHED)
    assert made.reward_parts == {"num_steps": 3.0, "success": 1.0}
    assert Guess.num_open == 0


def test_seeds_and_options_of_a_row_reach_the_environment_and_a_truncated_one_ends() -> None:
    factory = make_env_factory("gymnasium", {**GUESS, "kwargs": {"first": "Go."}, "system_prompt": "Guess."})
    env = factory()
    assert env.reset({"task_id": "t", "options": {"number": 5}}) == [Message.system("Guess."), Message.user("Go.")]
    assert env.step(Message.assistant(" 4 ")).messages == (Message.user("higher"),)
    assert not env.step(Message.assistant("4")).terminated
    last = env.step(Message.assistant("4"))
    assert last.terminated and last.reward_parts["success"] == 0.0
    env.close()


def test_ten_rewards_of_a_tenth_solve_what_needs_one() -> None:
    env = make_env_factory("gymnasium", {**GUESS, "kwargs": {"reward": 0.1}})()
    env.reset({"task_id": "t"})
    results = [env.step(Message.assistant("1")) for _ in range(10)]
    assert sum(each.reward for each in results) < 1.0
    assert [each.reward_parts["success"] for each in results[-2:]] == [0.0, 1.0]
    env.close()


@pytest.mark.parametrize("reward", [numpy.float32(0.5), numpy.array(0.5), numpy.array([0.5]), True])
def test_rewards_of_other_types_are_numbers(reward: object) -> None:
    env = make_env_factory("gymnasium", {**GUESS, "kwargs": {"reward": reward}})()
    env.reset({"task_id": "t"})
    got = env.step(Message.assistant("1")).reward
    assert type(got) is float and got == float(numpy.asarray(reward).item())
    env.close()


@pytest.mark.parametrize("end", [True, 1, numpy.True_, numpy.array([1])])
@pytest.mark.parametrize("info", [None, {}])
def test_ends_of_other_types_are_true_or_false(end: object, info: object) -> None:
    for ends in ([end], [end, False], [False, end]):
        env = make_env_factory("gymnasium", {**GUESS, "kwargs": {"result": ("over", 1.0, *ends, info)}})()
        env.reset({"task_id": "t"})
        assert env.step(Message.assistant("1")).terminated
        env.close()


def test_an_environment_from_before_version_26_is_seeded_and_answers_with_four_values() -> None:
    env = make_env_factory("gymnasium", {"make": "foreign_fakes:OldGuess"})()
    assert env.reset({"task_id": "t", "seed": 14}) == [Message.user("Guess from 0 to 9.")]
    assert env.step(Message.assistant("1")).messages == (Message.user("wrong"),)
    last = env.step(Message.assistant("4"))
    assert (last.reward, last.terminated) == (1.0, True)
    env.close()


def test_an_action_is_the_whole_reply_calls_included() -> None:
    env = make_env_factory("gymnasium", {**GUESS, "act": "foreign_fakes:to_move"})()
    env.reset({"task_id": "t"})
    for message in (
        Message.assistant("go", (ToolCall(name="a", arguments={"b": 1}),)),
        Message(role="assistant", content="", written='<tool_call>{"name": "a"}'),
    ):
        told = env.step(message)
        assert "<tool_call>" in told.messages[0].content and told.info == {"tool_errors": 1}
    env.close()


def test_rows_have_seeds_that_no_other_file_has() -> None:
    factory = make_env_factory("gymnasium", GUESS)
    files = factory.task_files(0, 50, 20)
    assert len({row["seed"] for rows in files.values() for row in rows}) == 70
    assert files == factory.task_files(0, 50, 20) != factory.task_files(1, 50, 20)
    for row in files["train"]:
        factory.check_task(row, "row")


def test_an_id_of_the_package_with_numbers_in_and_out() -> None:
    pytest.importorskip("gymnasium")
    words = {"describe": "foreign_fakes:in_words", "act": "foreign_fakes:to_move"}
    factory = make_env_factory("gymnasium", {"make": "FrozenLake-v1", "kwargs": {"is_slippery": False}, **words})
    env = factory()
    assert env.reset({"task_id": "t", "seed": 3}) == [Message.user("You see 0.")]
    assert env.step(Message.assistant("jump")).messages[0].content.startswith("error: 'jump' is no move")
    for move in ("down", "down", "right", "right", "down"):
        assert not env.step(Message.assistant(move)).terminated
    last = env.step(Message.assistant("right"))
    assert (last.reward, last.terminated, last.reward_parts["success"]) == (1.0, True, 1.0)
    env.close()


def test_an_id_goes_to_the_package_and_an_import_path_does_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gymnasium.py").write_text(
        "def spec(id): assert id == 'foreign_fakes:Guess-v0', id\n"
        "def make(id, disable_env_checker, **kwargs):\n"
        "    import foreign_fakes\n"
        "    return foreign_fakes.Guess(**kwargs)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "gymnasium", raising=False)
    env = make_env_factory("gymnasium", {"make": "foreign_fakes:Guess-v0", "kwargs": {"first": "Hm."}})()
    assert env.reset({"task_id": "t"}) == [Message.user("Hm.")]
    env.close()
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    make_env_factory("gymnasium", GUESS)().close()
