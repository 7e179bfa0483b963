"""Rewards of the raced tasks: by hand, against hostile text, and equal to the environment's of the same data set."""

import json
from fractions import Fraction

import pytest
from racing.rewards import answer_of, countdown, reasoning_gym, reverse_text, value_of

from agent_rl.agent.messages import Message
from agent_rl.envs.registry import make_env_factory
from agent_rl.rewards import make_reward


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def test_reversed_text_counts_by_likeness_inside_its_tags() -> None:
    replies = ["<reversed_text>cba</reversed_text>", said("<reversed_text> cbx </reversed_text>"), "cba", said("")]
    assert reverse_text(replies, ["cba"] * 4) == pytest.approx([1.0, 4 / 6, 0.0, 0.0])


def test_a_reply_that_goes_on_behind_its_tags_earns_nothing() -> None:
    right, equation = "<reversed_text>cba</reversed_text>", "<answer>(1 + 2) * 3</answer>"
    assert reverse_text([right + "\n", right + " cb", right + right], ["cba"] * 3) == [1.0, 0.0, 1.0]
    replies = [equation + " ", equation + " (1 +", equation + " 1 </answer>"]
    assert countdown(replies, [[1, 2, 3]] * 3, [9] * 3) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("<answer> (1 + 2) * 3 </answer>", 1.0),
        ("<answer>3*(2+1)</answer>", 1.0),
        ("<answer>1</answer> no: <answer>(1+2)*3</answer>", 1.0),
        ("<answer>3 * 3</answer>", 0.1),  # not these numbers
        ("<answer>1 + 2 + 3</answer>", 0.1),  # not the target
        ("<answer>1 + 2 + 3 + 3</answer>", 0.1),  # 3 twice
        ("(1 + 2) * 3", 0.0),
        ("<answer>(1 + 2 * 3</answer>", 0.0),
        ("<answer>9 = (1 + 2) * 3</answer>", 0.0),
        ("<answer>1 / (2 - 2)</answer>", 0.0),
        ("<answer>9**9**9**9</answer>", 0.0),
        ("<answer>__import__('os').abort()</answer>", 0.0),
        ("<answer>" + "(" * 10_000 + "</answer>", 0.0),
    ],
)
def test_countdown_asks_for_the_numbers_and_the_target(reply: str, expected: float) -> None:
    assert countdown([said(reply)], [[1, 2, 3]], [9]) == [expected]


def test_equations_are_exact_and_know_precedence() -> None:
    assert value_of("1 + 2 * 3 - 4 / 8") == Fraction(13, 2)
    assert value_of("8 - 3 - 2") == 3
    assert value_of("8 / 4 / 2") == 1
    for wrong in ("", "1 +", "1 2", "-1", "1 // 2", "1 + 2)"):
        with pytest.raises(ValueError, match=r"\w"):
            value_of(wrong)


def test_the_function_gives_what_the_environment_of_reasoning_gym_gives() -> None:
    pytest.importorskip("reasoning_gym", reason="pip install -r requirements-envs.txt")
    for name in ("spell_backward", "letter_counting", "number_sorting"):
        factory = make_env_factory("reasoning_gym", {"dataset": name})
        for task in factory.task_files(3, 3, 1)["train"]:
            entry = repr(factory.entry(task))
            for text in (
                f"So.\nAnswer: {task['answer']}",
                f"<answer>{task['answer']}</answer>",
                "Answer: 7",
                "abc",
                "",
            ):
                (ours,) = reasoning_gym([said(text)], [json.dumps([name, {}])], [entry])
                assert ours == factory.score(task, answer_of(text))[0]
        factory.close()


def test_a_reward_is_one_of_the_library_too() -> None:
    reply = Message.assistant("<reversed_text>cba</reversed_text>")
    task = {"task_id": "1", "prompt": [{"role": "user", "content": "abc"}], "answer": "cba"}
    total, parts = make_reward("racing.rewards:reverse_text", lends=())(
        prediction=reply.content, trajectory=(Message.user("abc"), reply), task=task, num_opening=1
    )
    assert (total, parts["success"]) == (1.0, 1.0)
