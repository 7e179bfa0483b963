"""Reward functions of other libraries: which style a function has, what it is given, what it may give."""

import asyncio
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.errors import ConfigError, DataError, UserError
from agent_rl.rewards import make_reward, reward_of

TEXT_ROW = {"task_id": "t0", "prompt": "2 + 2?", "answer": "4", "level": 3}
CHAT_ROW = {**TEXT_ROW, "prompt": [{"role": "user", "content": "2 + 2?"}]}
OPENING = (Message.user("2 + 2?"),)
SAID = Message.assistant("It is 4")


def score(functions: Any, row: dict[str, Any] = TEXT_ROW, *, said: tuple[Message, ...] = (SAID,), **more: Any) -> Any:
    made = reward_of(functions, **more)
    made.check_task(row, "rows:row 1")
    return made(prediction=said[-1].content, trajectory=(*OPENING, *said), task=row, num_opening=1)


# Wrong input


def needs_ids(completions, completion_ids, **kwargs):
    return [0.0]


def needs_state(prompts, completions, trainer_state, **kwargs):
    return [0.0]


def mixed(completions, prediction):
    return [0.0]


def mixed_too(completion, completions):
    return [0.0]


def sees_nothing(answer):
    return 1.0


def takes_all(**kwargs):
    return 1.0


def by_place(completions, /):
    return [1.0]


def starred(*completions):
    return [1.0]


async def in_parts(completions):
    yield [1.0]


class Model(torch.nn.Module):
    def forward(self, ids):
        return ids


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (needs_ids, "'needs_ids' needs 'completion_ids', and environments see messages and no token ids"),
        (needs_state, "'needs_state' needs 'trainer_state'"),
        (mixed, "'mixed' names 'completions' and 'prediction'"),
        (mixed_too, "'mixed_too' names 'completion' and 'completions'"),
        (sees_nothing, "'sees_nothing' names none of prediction, trajectory, completions, prompts, completion,"),
        (takes_all, "'takes_all' names none of"),
        (by_place, "'by_place' has parameters without a name"),
        (starred, "'starred' has parameters without a name"),
        (in_parts, "'in_parts' yields"),
        (len, "'len'"),
        (7, "reward_funcs: got 7, a int"),
        (None, "reward_funcs: got None"),
        ([], "reward_funcs: is empty"),
        ([lambda completions: [1.0], 7], "reward_funcs: got 7"),
        (Model(), "reward_funcs: got Model"),
        ("no_such_reward", "unknown reward 'no_such_reward'"),
        (["exact_match_reward", "exact_match_reward"], "'exact_match_reward' twice"),
    ],
)
def test_a_function_that_fits_no_style_is_refused_in_one_sentence(given: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        reward_of(given)
    assert "\n" not in str(caught.value)


def batch(completions, **kwargs):
    return [1.0]


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ([1.0, 2.0], "reward_weights: got 2 weights for 1 reward"),
        ([float("nan")], r"reward_weights\[0\] is nan"),
        (["1"], r"reward_weights\[0\] is '1'"),
        (2.0, "reward_weights: got 2.0, expected a list"),
    ],
)
def test_wrong_weights_are_refused(weights: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        reward_of(batch, weights=weights)


@pytest.mark.parametrize(
    ("gives", "complaint"),
    [
        (1.0, r"gave 1.0, expected a list with one number, for the one completion"),
        ("1.0", "gave '1.0', expected a list"),
        ({"reward": 1.0}, "gave {'reward': 1.0}, expected a list"),
        (None, "gave None, expected a list"),
        ([], r"gave \[\], expected a list"),
        ([1.0, 2.0], r"gave \[1.0, 2.0\], expected a list"),
        (torch.tensor(1.0), ".*, expected a list"),
        (["1.0"], "gave '1.0' for 'reward', expected a finite number"),
        ([np.str_("1.0")], "gave .* for 'reward', expected a finite number"),
        ([float("nan")], "gave nan for 'reward'"),
        ([np.float32("inf")], r"gave .*inf.* for 'reward'"),
        (torch.tensor([float("nan")]), "gave .* for 'reward', expected a finite number"),
        ([[1.0]], r"gave \[1.0\] for 'reward'"),
        (iter([1.0]), "gave .*, expected a list"),
    ],
)
def test_a_list_function_that_gives_no_list_of_one_number_is_an_error_with_its_name(gives: Any, complaint: str) -> None:
    def listed(completions):
        return gives

    with pytest.raises(UserError, match=f"^the reward 'listed' {complaint}"):
        score(listed)


@pytest.mark.parametrize("gives", ["1.0", float("nan"), np.float64("-inf"), [1.0], torch.ones(2)])
def test_a_function_of_one_completion_gives_a_finite_number(gives: Any) -> None:
    def single(completion):
        return gives

    with pytest.raises(UserError, match=r"^the reward 'single' gave .* for 'reward', expected a finite number"):
        score(single)


def with_target(completions, target):
    return [1.0]


def single_with_state(completion, state):
    return 1.0


@pytest.mark.parametrize(
    ("function", "row", "complaint"),
    [
        (with_target, TEXT_ROW, "rows:row 1: the reward 'with_target' needs the key 'target'"),
        (with_target, {**TEXT_ROW, "targte": 1}, "did you mean 'targte'"),
        (single_with_state, TEXT_ROW, "needs the key 'state'"),
        (batch, {**TEXT_ROW, "completions": 1}, "the column 'completions' has the name of what the reward 'batch' is"),
        (single_with_state, {**TEXT_ROW, "state": 1, "completion": 1}, "the column 'completion' has the name of"),
    ],
)
def test_a_row_that_does_not_fit_a_function_is_refused(function: Any, row: dict, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        reward_of(function).check_task(row, "rows:row 1")


def looks_up(completion, info):
    return helper(info)


def helper(info):
    return {}[info]


async def looks_up_later(completions, level, **kwargs):
    await asyncio.sleep(0)
    return [helper(level[0])]


def raises_in_a_library(completion):
    return float(np.linalg.inv(np.zeros((2, 3)))[0, 0])


@pytest.mark.parametrize(
    ("function", "kind", "place"),
    [
        (looks_up, "KeyError", "helper"),
        (looks_up_later, "KeyError", "helper"),
        (raises_in_a_library, "LinAlgError", "raises_in_a_library"),
    ],
)
def test_what_a_function_raises_is_named_with_the_innermost_line_of_the_user(
    function: Callable[..., Any], kind: str, place: str
) -> None:
    with pytest.raises(UserError) as caught:
        score(function, {**TEXT_ROW, "info": "x"})
    line = {"helper": helper, "raises_in_a_library": raises_in_a_library}[place].__code__.co_firstlineno + 1
    assert str(caught.value).startswith(f"the reward '{function.__name__}' raised {kind}: ")
    assert str(caught.value).endswith(f"tests/rewards/test_reward_styles.py:{line} in {place}")


# Right input


def test_a_list_function_is_given_texts_for_a_text_prompt_and_columns_as_lists() -> None:
    seen = {}

    def keep(prompts, completions, answer, **columns):
        seen.update(prompts=prompts, completions=completions, answer=answer, **columns)
        return [0.5]

    assert score(keep) == (0.5, {"keep": 0.5, "success": 0.0})
    assert seen == {
        "prompts": ["2 + 2?"],
        "completions": ["It is 4"],
        "answer": ["4"],
        "level": [3],
        "task_id": ["t0"],
    }


def test_a_list_function_is_given_messages_for_a_prompt_of_messages() -> None:
    seen = []

    def keep(prompts, completions):
        seen.extend([prompts, completions])
        return (1,)

    call = ToolCall(name="add", arguments={"a": 1})
    said = (
        Message(role="assistant", content="", reasoning="Hm.", tool_calls=(call,)),
        Message.tool("3", name="add"),
        SAID,
    )
    assert score(keep, CHAT_ROW, said=said) == (1.0, {"keep": 1.0, "success": 1.0})
    tool_calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
    assert seen == [
        [CHAT_ROW["prompt"]],
        [
            [
                {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": tool_calls},
                {"role": "tool", "name": "add", "content": "3"},
                {"role": "assistant", "content": "It is 4"},
            ]
        ],
    ]


def test_a_text_holds_the_reasoning_of_the_last_reply() -> None:
    said = (Message(role="assistant", content="4", reasoning="2 and 2"),)

    def has_both(completions):
        return [float(completions == ["<think>\n2 and 2\n</think>\n\n4"])]

    assert score(has_both, said=said)[0] == 1.0


def test_a_function_of_one_completion_is_filled_by_names() -> None:
    seen = {}

    def keep(completion, answer, prompt, info=None, **kw):
        seen.update(completion=completion, answer=answer, prompt=prompt, info=info, **kw)
        return np.float32(1)

    assert score(keep, CHAT_ROW)[1] == {"keep": 1.0, "success": 1.0}
    assert seen == {
        "completion": [{"role": "assistant", "content": "It is 4"}],
        "answer": "4",
        "prompt": CHAT_ROW["prompt"],
        "info": None,
        "level": 3,
        "task_id": "t0",
    }


def test_a_function_of_ours_is_filled_as_ever_async_too() -> None:
    async def ours(prediction, trajectory, task, answer):
        await asyncio.sleep(0)
        return {"reward": float(answer in prediction), "length": len(trajectory)}

    assert score(ours) == (1.0, {"ours": 1.0, "ours/length": 2.0, "success": 1.0})


def test_rows_without_a_prompt_give_the_messages_of_the_episode() -> None:
    def keep(prompts, completions):
        seen.append((prompts, completions))
        return [0.0]

    seen: list[Any] = []
    row = {"task_id": "t", "question": "2 + 2?"}
    reward_of(keep)(prediction="", trajectory=(*OPENING, SAID), task=row)
    assert seen == [([[{"role": "user", "content": "2 + 2?"}]], [[{"role": "assistant", "content": "It is 4"}]])]


def test_several_functions_are_weighted_and_none_is_not_applicable() -> None:
    def first(completions):
        return [None]

    async def second(completion):
        return 1.0

    def third(prediction):
        return torch.tensor(0.5)

    assert score([first, second, third]) == (1.5, {"second": 1.0, "third": 0.5, "success": 1.0})
    assert score([first, second, third], weights=[1.0, 2.0, -1.0]) == (
        1.5,
        {"second": 2.0, "third": -0.5, "success": 1.0},
    )
    assert score([first, "exact_match_reward"], weights=[5, 1])[1] == {"exact_match_reward": 0.0, "success": 0.0}


def test_an_episode_to_which_no_function_applies_is_not_scored() -> None:
    def neither(completions):
        return [None]

    total, parts = score(neither)
    assert (total, parts) == (None, {})
    assert "'neither' gave None" in reward_of(neither).unscored(parts)


@pytest.mark.parametrize(
    "gives", [[1], [True], (0.5,), np.array([1.0]), torch.tensor([1.0]), [torch.tensor(1.0)], [np.float16(1)]]
)
def test_lists_arrays_and_tensors_of_one_number_are_taken(gives: Any) -> None:
    def listed(completions):
        return gives

    assert score(listed)[0] == float(gives[0])


class Judge:
    async def __call__(self, completions, **kwargs):
        return [1.0]

    def graded(self, completion):
        return 0.5


def of_length(completions, length):
    return [float(length)]


def test_objects_methods_partials_and_lambdas_have_names() -> None:
    given = [Judge(), Judge().graded, functools.partial(of_length, length=2), lambda prediction: 0.0]
    made = reward_of(given)
    assert made.names == ("Judge", "graded", "of_length", "lambda")
    assert score(given)[0] == 3.5


def test_async_functions_of_many_threads_share_one_loop_and_wait_together() -> None:
    loops, gathered = [], threading.Barrier(4, timeout=30)

    async def judge(completions):
        loops.append(asyncio.get_running_loop())
        await asyncio.to_thread(gathered.wait)
        return [1.0]

    made, totals = reward_of(judge), []
    work = lambda: totals.append(made(prediction="", trajectory=(*OPENING, SAID), task=TEXT_ROW)[0])  # noqa: E731
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert totals == [1.0] * 4
    assert len(set(map(id, loops))) == 1


def test_an_async_function_that_leaves_fails_with_its_name_and_the_next_is_called() -> None:
    async def leaves(completion):
        sys.exit("no key")

    async def stays(completion):
        return 1.0

    def leaks(completion):
        raise asyncio.CancelledError

    with pytest.raises(UserError, match=r"the reward 'leaks' raised CancelledError at .*_styles\.py"):
        score(leaks)
    for _ in range(2):
        with pytest.raises(UserError, match=r"the reward 'leaves' raised SystemExit: no key at .*_styles\.py"):
            score(leaves)
        assert score(stays)[0] == 1.0


def test_an_async_function_works_inside_a_running_loop_as_in_a_notebook() -> None:
    async def judge(completion):
        return 1.0

    async def cell() -> Any:
        return score(judge)

    assert asyncio.run(cell())[0] == 1.0


def test_a_reply_that_was_cut_off_is_scored_as_far_as_it_goes_and_is_no_success() -> None:
    def length(completions):
        return [len(completions[0]) / 7]

    def exact(prediction):
        return float(int(prediction))

    made = reward_of([length, exact])
    assert made.without_answer(trajectory=(*OPENING, SAID), task=TEXT_ROW, num_opening=1) == (
        1.0,
        {"length": 1.0, "exact": 0.0, "success": 0.0},
    )
    with pytest.raises(UserError, match=r"^the reward 'helpless' raised"):
        reward_of(lambda_named("helpless")).without_answer(trajectory=(*OPENING, SAID), task=TEXT_ROW)
    assert reward_of(lambda_named("empty")).without_answer(trajectory=OPENING, task=TEXT_ROW)[0] == 0.0


def lambda_named(name: str) -> Callable[..., Any]:
    def made(completions):
        return [1.0 / 0.0]

    made.__name__ = name
    return made


def test_a_configuration_names_functions_of_any_style_by_import_path() -> None:
    (made,) = make_reward(f"{__file__}:batch").names
    assert made == "batch"
