"""Rewards: how functions are registered and filled, their sum, and golden values of the built-in ones."""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from cpu_time import cpu_s
from hypothesis import assume, given
from hypothesis import strategies as st

from agent_rl.agent.messages import Message
from agent_rl.config import validate_section
from agent_rl.envs.code.rewards import code_of, code_reward
from agent_rl.envs.qa_env import QAEnvOptions
from agent_rl.errors import ConfigError, DataError, SandboxError, UserError
from agent_rl.rewards import make_reward, reward
from agent_rl.rewards.answers import (
    boxed,
    exact_match,
    exact_match_reward,
    matches,
    math_answer,
    math_reward_string_equal,
    normalize_answer,
    qa_f1_reward,
    searched_reward,
    token_f1,
)
from agent_rl.sandbox.verdict import Outcome, Verdict

_names = itertools.count()
TASK = {"task_id": "t0", "question": "2 + 2?", "answer": "4"}
TRAJECTORY = (Message.user("2 + 2?"), Message.assistant("4"))


def registered(function: Any, **options: Any) -> str:
    """Register under a name that no other test uses."""
    name = f"test-{next(_names)}"
    reward(name, **options)(function)
    return name


def math_score(prediction: str, answer: Any) -> float:
    """The mathematical reward, which is the success too."""
    outcome = math_reward_string_equal(prediction, answer)
    assert outcome == {"reward": outcome["reward"], "success": outcome["reward"]}
    return outcome["reward"]


def score(specs: Any, prediction: str = "4", task: dict = TASK, **resources: Any) -> tuple[float | None, dict]:
    return make_reward(specs)(prediction=prediction, trajectory=TRAJECTORY, task=task, **resources)


# Registering and filling


def test_a_function_is_registered_by_its_name_or_by_another_and_stays_as_it_is() -> None:
    @reward
    def test_bare_name(prediction: str) -> float:
        return 0.25

    @reward("test_positional")
    def first(prediction: str) -> float:
        return 0.5

    @reward(name="test_keyword")
    def second(prediction: str) -> float:
        return 0.75

    assert (test_bare_name("x"), first("x"), second("x")) == (0.25, 0.5, 0.75)
    names = ("test_bare_name", "test_positional", "test_keyword")
    assert [score(name)[0] for name in names] == [0.25, 0.5, 0.75]


def test_parameters_are_filled_by_name_from_the_episode_the_row_and_what_is_lent() -> None:
    def seen(
        prediction: str, trajectory: tuple, task: dict, answer: str, level: int, tool: Any, other: int = 7
    ) -> float:
        assert (trajectory, task["task_id"], answer, other) == (TRAJECTORY, "t0", "4", 7)
        return level + tool(prediction)

    name = registered(seen, needs=["tool"])
    assert score(name, "four", {**TASK, "level": 3}, tool=len)[0] == 7.0


def test_a_parameter_with_a_default_takes_the_rows_value_where_there_is_one() -> None:
    name = registered(lambda level=1: level)
    assert score(name)[0] == 1.0
    assert score(name, task={**TASK, "level": 5})[0] == 5.0


def test_keyword_arguments_take_all_there_is() -> None:
    name = registered(lambda prediction, **rest: len(rest))
    # trajectory, task and the three keys of the row
    assert score(name)[0] == 5.0


def test_what_the_episode_gives_comes_before_the_rows_keys_of_the_same_name() -> None:
    name = registered(lambda prediction, task: prediction == "4" and task["prediction"] == "row")
    assert score(name, task={**TASK, "prediction": "row"})[0] == 1.0


def test_functions_in_the_style_of_agentfly_work() -> None:
    def theirs(prediction: str, answer: str, trajectory: list) -> dict:
        return {"reward": 0.5, "em": float(prediction == answer), "num_messages": len(trajectory)}

    name = registered(theirs)
    assert score(name) == (0.5, {name: 0.5, f"{name}/em": 1.0, f"{name}/num_messages": 2.0, "success": 0.0})


async def judge_in_parts(prediction: str) -> Any:
    yield 1.0


def test_a_mistyped_parameter_is_the_functions_fault_and_a_missing_key_the_rows() -> None:
    for function, word in [
        (lambda predicton, answer: 1.0, "'prediction'"),
        (lambda prediction, trajectry: 1.0, "'trajectory'"),
        (lambda completion_s: 1.0, "'completions'"),
    ]:
        rewards = make_reward(registered(function))
        with pytest.raises(ConfigError) as caught:
            rewards.check_task(TASK, "train.jsonl:1")
        text = str(caught.value)
        assert f"({__file__}:{function.__code__.co_firstlineno})" in text and word in text
        assert "train.jsonl" not in text
    # A hint of another style would be refused next.
    rewards = make_reward(registered(lambda prediction, completion_of: 1.0))
    for task, word in [
        (TASK, r"the row has .*answer.*; add it"),
        ({**TASK, "completion_off": 1}, "did you mean 'completion_off'"),
    ]:
        with pytest.raises(DataError, match=word) as refused:
            rewards.check_task(task, "train.jsonl:1")
        assert str(refused.value).startswith("train.jsonl:1: ")


def test_a_column_that_no_row_has_is_not_taken_for_a_name_of_the_episode() -> None:
    rewards = make_reward(registered(lambda completions, solution, **columns: [1.0]))
    with pytest.raises(DataError, match=r"needs the key 'solution'; the row has prompt, answer"):
        rewards.check_task({"prompt": "1+1", "answer": "2"}, "train.jsonl:1")


@pytest.mark.parametrize(
    ("function", "name", "needs", "complaint"),
    [
        (judge_in_parts, None, (), "'judge_in_parts' yields"),
        (lambda *texts: 1.0, "test-star", (), "'test-star' has parameters without a name"),
        (lambda prediction, /: 1.0, "test-slash", (), "'test-slash' has parameters without a name"),
        (lambda prediction: 1.0, "qa_f1_reward", (), "there is a reward 'qa_f1_reward' already"),
        (lambda prediction: 1.0, "success", (), "cannot be named 'success'"),
        (lambda prediction: 1.0, "", (), "cannot be named ''"),
        (lambda prediction: 1.0, "a/b", (), "cannot be named 'a/b'"),
        (lambda prediction: 1.0, "test-needs", ("grade",), "says it needs 'grade', which is no parameter"),
    ],
)
def test_functions_that_cannot_work_are_refused_when_they_are_registered(
    function: Any, name: str | None, needs: tuple, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        reward(name, needs=needs)(function)


# Making a sum


@pytest.mark.parametrize(
    ("specs", "complaint"),
    [
        ("qa_f1_rewrd", "'qa_f1_rewrd' in env.options.reward; did you mean 'qa_f1_reward'"),
        ("zzz", "'zzz' in env.options.reward; known: .*math_reward_string_equal"),
        (["qa_f1_reward", {"name": "qa_f1_reward"}], "names 'qa_f1_reward' twice"),
        ([], r"env.options.reward = \[\]: expected the name of a reward, {name, weight}, or a list of these"),
        ({"name": "qa_f1_reward", "weight": float("nan")}, "reward.0.weight = nan: input should be a finite number"),
        ({"name": "qa_f1_reward", "weight": float("inf")}, "reward.0.weight = inf"),
        ({"name": "qa_f1_reward", "wight": 2}, "unknown key 'env.options.reward.0.wight'; did you mean 'weight'"),
        ({"weight": 2}, "'env.options.reward.0.name' is missing"),
        ([{"name": "qa_f1_reward", "weight": 0.0}], "all weights are 0"),
        (["qa_f1_reward", 5], r"env.options.reward = \['qa_f1_reward', 5\]: expected the name"),
        (None, "env.options.reward = None: expected the name"),
    ],
)
def test_bad_entries_are_refused_with_a_sentence(specs: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_reward(specs)


def test_a_configuration_takes_the_same_forms_and_reports_the_same_errors() -> None:
    for form in ("exact_match_reward", {"name": "exact_match_reward"}, [{"name": "exact_match_reward", "weight": 1}]):
        options = validate_section(QAEnvOptions, {"reward": form}, source="config", prefix="env.options")
        assert make_reward(options.reward).names == ("exact_match_reward",)
    with pytest.raises(ConfigError, match=r"unknown key 'env.options.reward.0.wight'; did you mean 'weight'"):
        bad = {"reward": [{"name": "exact_match_reward", "wight": 1}]}
        validate_section(QAEnvOptions, bad, source="config", prefix="env.options")


def test_a_reward_is_refused_where_its_resource_is_not_lent() -> None:
    assert make_reward("code_reward", lends=("grade",)).names == ("code_reward",)
    with pytest.raises(ConfigError, match="'code_reward' needs 'grade', which this environment does not lend"):
        make_reward("code_reward", lends=())
    with pytest.raises(DataError, match="'code_reward' needs 'grade', which neither the row nor the environment gives"):
        score("code_reward")


def test_a_row_without_a_key_that_a_function_needs_is_refused_and_the_nearest_key_named() -> None:
    rewards = make_reward(["exact_match_reward", "code_reward", "searched_reward"])
    rewards.check_task(TASK, "tasks.jsonl:1")
    bad = {"task_id": "t0", "question": "?", "anwser": "4"}
    with pytest.raises(
        DataError, match=r"^tasks.jsonl:2: the reward 'exact_match_reward' needs the key 'answer'; did .*'anwser'"
    ):
        rewards.check_task(bad, "tasks.jsonl:2")


# The sum


def test_the_sum_is_weighted_and_its_parts_are_named() -> None:
    specs = [{"name": "exact_match_reward", "weight": 2}, {"name": registered(lambda prediction: 0.5), "weight": -0.5}]
    total, parts = score(specs)
    assert total == 1.75
    assert parts == {"exact_match_reward": 2.0, specs[1]["name"]: -0.25, "success": 1.0}


def test_a_bonus_that_is_listed_first_does_not_decide_success() -> None:
    found = (Message.tool("[1] Velm", name="search"),)
    bonus = {"name": "searched_reward", "weight": 0.1}
    for judge in ("exact_match_reward", "math_reward_string_equal"):
        wrong, right = (make_reward([bonus, judge])(prediction=p, trajectory=found, task=TASK) for p in ("5", "4"))
        assert wrong == (0.1, {"searched_reward": 0.1, judge: 0.0, "success": 0.0})
        assert right == (1.1, {"searched_reward": 0.1, judge: 1.0, "success": 1.0})


def test_without_an_answer_every_function_scores_an_empty_one_and_nothing_succeeds() -> None:
    wrong = registered(lambda prediction: {"reward": float(prediction != "4"), "empty": prediction == "", "success": 1})
    turns = registered(lambda trajectory: 2)
    rewards = make_reward([{"name": wrong, "weight": -1}, {"name": turns, "weight": 0.25}])
    assert rewards.without_answer(trajectory=TRAJECTORY, task=TASK) == (
        -0.5,
        {wrong: -1.0, f"{wrong}/empty": 1.0, turns: 0.5, "success": 0.0},
    )


def test_a_function_that_cannot_score_an_empty_answer_counts_as_nothing() -> None:
    strict, silent, empty = (
        registered(lambda prediction: float(int(prediction))),
        registered(lambda prediction: float(prediction) if prediction else None),
        registered(lambda prediction: float("nan")),
    )
    bonus = registered(lambda trajectory: 0.5)
    total, parts = make_reward([strict, silent, empty, bonus]).without_answer(trajectory=TRAJECTORY, task=TASK)
    assert (total, parts) == (0.5, {strict: 0.0, silent: 0.0, empty: 0.0, bonus: 0.5, "success": 0.0})


def test_what_the_sandbox_raises_is_not_forgiven_without_an_answer_either() -> None:
    def gone(code: str) -> Verdict:
        raise SandboxError("the fork server is gone")

    with pytest.raises(SandboxError, match=r"^the fork server is gone$"):
        make_reward("code_reward").without_answer(trajectory=TRAJECTORY, task=TASK, grade=gone)


def test_success_is_the_first_one_that_a_function_reports() -> None:
    silent = registered(lambda prediction: 1.0)
    failing = registered(lambda prediction: {"reward": 1.0, "success": False})
    succeeding = registered(lambda prediction: {"reward": 0.0, "success": 1})
    assert score([silent, failing, succeeding])[1]["success"] == 0.0
    assert score([silent, succeeding, failing])[1]["success"] == 1.0


def test_without_such_a_function_success_is_a_full_reward_of_the_first_whatever_its_weight() -> None:
    full, nearly, half = (registered(lambda prediction, value=value: value) for value in (1.0, 1.0 - 1e-8, 0.5))
    assert score([{"name": full, "weight": 0.1}, half])[1]["success"] == 1.0
    assert score([nearly, full])[1]["success"] == 0.0
    assert score([{"name": half, "weight": 4}, full])[1]["success"] == 0.0


def test_none_means_an_unscored_episode_and_the_reward_is_named() -> None:
    for gives in (None, {"reward": None, "cost": 1.0}):
        judge = registered(lambda prediction, gives=gives: gives)
        rewards = make_reward(["exact_match_reward", judge])
        total, parts = rewards(prediction="4", trajectory=TRAJECTORY, task=TASK)
        assert total is None
        assert f"{judge!r} gave None" in rewards.unscored(parts) and f"({__file__}:" in rewards.unscored(parts)


@pytest.mark.parametrize(
    ("gives", "complaint"),
    [
        (float("nan"), "gave nan for 'reward', expected a finite number"),
        (float("-inf"), "gave -inf for 'reward'"),
        ("1.0", "gave '1.0' for 'reward'"),
        ([1.0], r"gave \[1.0\] for 'reward'"),
        ({"score": 1.0}, r"gave a mapping without 'reward': its keys are \['score'\]"),
        ({"reward": 1.0, "why": "good"}, "gave 'good' for 'why'"),
        ({"reward": 1.0, "success": 0.5}, "gave 0.5 for 'success', expected 0 or 1"),
    ],
)
def test_what_is_no_finite_number_is_an_error_with_the_rewards_name(gives: Any, complaint: str) -> None:
    name = registered(lambda prediction: gives)
    with pytest.raises(UserError, match=f"^the reward '{name}' {complaint}"):
        score(name)


def test_a_function_that_raises_is_an_error_with_its_name_and_the_sandboxs_stay_what_they_are() -> None:
    name = registered(lambda answer: {"reward": int(answer)})
    with pytest.raises(UserError, match=f"^the reward '{name}' raised ValueError: invalid literal"):
        score(name, task={**TASK, "answer": "four"})

    def gone(code: str) -> Verdict:
        raise SandboxError("the fork server is gone")

    with pytest.raises(SandboxError, match=r"^the fork server is gone$"):
        score("code_reward", grade=gone)


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=4), st.randoms())
def test_the_sum_of_the_named_parts_is_the_total(pairs: list[tuple[float, float]], rng: Any) -> None:
    assume(any(weight for _, weight in pairs))
    names = [SCALED[i] for i in range(len(pairs))]
    task = {"task_id": "t0", **{f"value{i}": value for i, (value, _) in enumerate(pairs)}}
    specs = [{"name": name, "weight": weight} for name, (_, weight) in zip(names, pairs, strict=True)]
    rng.shuffle(specs)
    total, parts = score(specs, task=task)
    assert total == pytest.approx(sum(parts[name] for name in names))
    assert total == pytest.approx(sum(value * weight for value, weight in pairs))


SCALED = [
    registered(lambda value0: value0),
    registered(lambda value1: value1),
    registered(lambda value2: value2),
    registered(lambda value3: value3),
]


# Answers to questions


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Mid-air!", "midair"),
        ("A man, a plan, an apple", "man plan apple"),
        ("theatre and another", "theatre and another"),
        ("U.S.A.\n", "usa"),
        ("Größe 10", "größe 10"),
        ("the", ""),
        ("--", ""),
    ],
)
def test_the_normal_form_is_squads(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("prediction", "answer", "f1", "precision", "recall"),
    [
        ("Denver Broncos", "The Denver Broncos!", 1.0, 1.0, 1.0),
        ("the Broncos of Denver, Colorado", "Denver Broncos", 2 / 3, 0.5, 1.0),
        ("Denver", "Denver Broncos", 2 / 3, 1.0, 0.5),
        ("Denver Denver", "Denver Broncos", 0.5, 0.5, 0.5),
        ("Santa Clara", "Denver Broncos", 0.0, 0.0, 0.0),
        ("", "Denver Broncos", 0.0, 0.0, 0.0),
        # HotpotQA's rule: no half of a yes.
        ("yes", "Yes.", 1.0, 1.0, 1.0),
        ("yes or no", "yes", 0.0, 0.0, 0.0),
        ("no", "no man", 0.0, 0.0, 0.0),
        # Nothing is left of these in the normal form; they are compared as they are.
        ("a", "A", 1.0, 1.0, 1.0),
        ("the", "A", 0.0, 0.0, 0.0),
        ("", "A", 0.0, 0.0, 0.0),
    ],
)
def test_token_f1_has_known_values(prediction: str, answer: str, f1: float, precision: float, recall: float) -> None:
    assert token_f1(prediction, answer) == pytest.approx((f1, precision, recall))


def test_the_best_of_several_accepted_answers_counts() -> None:
    answers = ["New York City", "NYC", 7]
    assert [matches(said, answers) for said in ("nyc", "7", "York", "")] == [1.0, 1.0, 0.0, 0.0]
    assert [matches(said, [1e16, 1e-5]) for said in ("10000000000000000", "0.00001", "1e16")] == [1.0, 1.0, 0.0]
    assert exact_match_reward("nyc", answers) == {"reward": 1.0, "success": 1.0}
    assert exact_match_reward("York", answers) == {"reward": 0.0, "success": 0.0}
    assert qa_f1_reward("York City", answers) == {"reward": 0.8, "precision": 1.0, "recall": 2 / 3, "success": 0.0}
    assert qa_f1_reward("the N.Y.C.", answers) == {"reward": 1.0, "precision": 1.0, "recall": 1.0, "success": 1.0}


WORDS = st.lists(st.sampled_from(["yes", "no", "a", "The", "Denver", "x1", "x1.", "-", "ß", "of"]), max_size=6)
PHRASES = WORDS.map(" ".join) | st.text(max_size=20)


@given(PHRASES)
def test_the_normal_form_of_a_normal_form_is_itself(text: str) -> None:
    assert normalize_answer(normalize_answer(text)) == normalize_answer(text)


@given(PHRASES, PHRASES)
def test_f1_and_exact_match_are_bounded_and_symmetric_and_a_match_is_a_full_f1(one: str, other: str) -> None:
    f1, precision, recall = token_f1(one, other)
    assert (f1, recall, precision) == token_f1(other, one)
    assert 0.0 <= min(precision, recall) <= f1 <= max(precision, recall) <= 1.0
    assert exact_match(one, other) == exact_match(other, one)
    assert f1 == 1.0 or not exact_match(one, other)


# Answers to problems


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("She sold 48/2 = <<48/2=24>>24 clips.\n24 + 48 = 72\n#### 72", "72"),
        ("#### 71, no:\n#### 72", "72"),
        ("#### 1,234", "1234"),
        ("$1,234.50", "1234.5"),
        ("\\boxed{72}", "72"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        (" 72.0 ", "72"),
        ("72.", "72"),
        ("007", "7"),
        (".50", "0.5"),
        ("-0.0", "0"),
        ("−3", "-3"),
        ("-$5", "-5"),
        ("\\$5", "5"),
        ("50%", "50"),
        ("6 / 8", "6/8"),
        ("1E+20", "100000000000000000000"),
        ("1e-5", "0.00001"),
        ("-2.50e1", "-25"),
        ("1e+1000", "1e1000"),
        ("1 234 567", "1234567"),
        ("1{,}234", "1234"),
        ("- 5", "-5"),
        ("x = - 5", "x = - 5"),
        ("+72", "72"),
        ("+ $1,234.50", "1234.5"),
        ("+1/2", "1/2"),
        ("x^2 + 1", "x^2 + 1"),
        ("72 apples", "72 apples"),
        ("", ""),
    ],
)
def test_a_reference_answer_has_one_spelling(text: str, value: str) -> None:
    assert math_answer(text) == value


@pytest.mark.parametrize(
    ("prediction", "answer"),
    [
        ("72", "#### 72"),
        ("72.00", "72"),
        ("72 apples", "72"),
        ("It is 48 + 24 = 72.", "72"),
        ("**72**", "72"),
        ("$1,234.50", "1234.5"),
        ("50%", "50"),
        ("10-3=7", "7"),
        ("so x = -7", "-7"),
        ("#### 72", "72"),
        ("The answer is \\boxed{72}, and 3 friends shared it.", "72"),
        ("3/4", "3 / 4"),
        ("12345678901234567890123456789012345678901", "12345678901234567890123456789012345678901.0"),
        ("$x^2+1$", "x^2 + 1"),
        ("(C)", "(c)"),
        ("Tuesday.", "tuesday"),
        ("72", 72),
        ("72", 72.0),
        ("5", ["four", 5]),
        ("1e5", "100000"),
        ("0.00001", 0.00001),
        ("1e-5", 0.00001),
        ("1e-05", 0.00001),
        ("10000000000000000", 1e16),
        ("1e16", 1e16),
        # Every dash is a minus, and spaces and $ may stand between it and its number.
        ("–5", "-5"),
        ("—5", "-5"),
        ("－5", "-5"),
        ("- 5", "-5"),
        ("-$ 5", "-5"),
        ("- \\$5", "-5"),
        ("x = - 5", "-5"),
        ("\\boxed{-\\,5}", "-5"),
        # Spaces and LaTeX's commas between groups of three digits
        ("\\boxed{1{,}234}", "1234"),
        ("1\\,234", "1234"),
        ("1,\\!234", "1234"),
        ("1 234", "1234"),
        ("1\u202f234", "1234"),
        ("1\u00a0234 567.5", "1234567.5"),
        # Units and their powers
        ("42 m^2", "42"),
        ("42 m^{2}", "42"),
        ("42 cm2", "42"),
        ("42 cm2.", "42"),
        ("42 m²", "42"),
        ("42 m/s^2", "42"),
        ("\\boxed{42\\text{ cm}^2}", "42"),
        ("42\\,\\mathrm{m}^{2}", "42"),
        ("90^\\circ", "90"),
        ("90°", "90"),
        ("USD72", "72"),
        ("USD25", "25"),
        ("USD2.50", "2.5"),
        ("+72", "72"),
        ("72", "+72"),
        ("x = +72", "+72"),
        ("The change is +72%.", "72"),
        # What only looks bound to something else
        ("x = 72", "72"),
        ("f(2) = 72", "72"),
        ("f(2) is (72)", "72"),
        ("The answer (72)", "72"),
        ("10 * 7 + 2 = (72)", "72"),
        ("**(72)**", "72"),
        ("1. (72)", "72"),
        ("72 (seventy-two)", "72"),
        ("72 pizzas", "72"),
        ("72 logs (of wood)", "72"),
        ("**72** a day", "72"),
        ("**72**(in all)", "72"),
        ("*72* I think", "72"),
        ("**Answer: 72** x", "72"),
        ("72 - a lot", "72"),
        ("72/s", "72"),
        ("72/hour", "72"),
        ("$72/week", "72"),
        ("72 sec", "72"),
        ("72 ευρώ", "72"),
        ("72 μm", "72"),
        ("print(72)", "72"),
        ("max(5, 72) = 72", "72"),
        ("the cost 72", "72"),
        ("the exponent: 72", "72"),
        ("b) 72", "72"),
        ("so 72 = x", "72"),
        ("\\textbf{72}", "72"),
        ("\\(72\\)", "72"),
        ("(72)", "72"),
        ("It is **72** apples!", "72"),
        ("Step 2: 30", "30"),
        ("$\\frac{1}{2} \\cdot 144 = 72$", "72"),
        ("x \\approx 72", "72"),
        ("Costs:\n- 72", "72"),
        ("3 1/2", "3  1/2"),
        ("\\frac{3}{4}", "\\frac{3}{4}"),
        ("x^2", "X^2"),
    ],
)
def test_a_right_answer_is_found_right(prediction: str, answer: Any) -> None:
    assert math_score(prediction, answer) == 1.0


@pytest.mark.parametrize(
    ("prediction", "answer"),
    [
        ("", "72"),
        ("", ""),
        ("$", "$"),
        ("", "#### "),
        (" ", "x"),
        ("27", "72"),
        ("172", "72"),
        ("72 or 73", "72"),
        ("-72", "72"),
        ("10-7", "-7"),
        ("7", "10-7"),
        ("3/4", "4"),
        ("0.75", "3/4"),
        ("1e72", "72"),
        ("72.01", "72"),
        ("12345678901234567890123456789012345678901", "12345678901234567890123456789012345678902"),
        ("1", "x^2 + 1"),
        ("72", "72 apples"),
        ("seventy-two", "72"),
        # A number that is part of something else
        ("\\boxed{\\frac{3}{4}}", "4"),
        ("\\frac34", "4"),
        ("2\\sqrt{3}", "3"),
        ("\\sqrt[3]{5}", "5"),
        ("√3", "3"),
        ("1.5 * 10^3", "3"),
        ("10^{3}", "3"),
        ("2**3", "3"),
        ("2^n", "2"),
        ("5²", "5"),
        ("x^2", "2"),
        ("x_1", "1"),
        ("cm2", "2"),
        ("3 1/2", "1/2"),
        ("3 × 4", "4"),
        ("3 x 4", "4"),
        ("3 \\times 4", "4"),
        ("y * 3", "3"),
        ("2x", "2"),
        ("2π", "2"),
        ("2\\pi", "2"),
        ("5:30", "30"),
        ("5 : 30", "30"),
        ("1.5.2", "2"),
        ("1,23", "23"),
        ("n/4", "4"),
        ("2 + 3", "3"),
        ("10 - 7", "7"),
        ("10-7", "7"),
        ("2024-05-30", "30"),
        ("31/2", "3 1/2"),
        ("10^(3)", "3"),
        ("10^(-3)", "-3"),
        ("10 ^ ( 3 )", "3"),
        ("10^\\left(3\\right)", "3"),
        ("10⁵", "10"),
        ("(10)⁵", "10"),
        ("(10)^n", "10"),
        ("101₂", "101"),
        ("2½", "2"),
        ("2 ½", "2"),
        ("±2", "2"),
        ("± 2", "2"),
        ("+-2", "-2"),
        ("3 ± 2", "2"),
        ("3 +/- 2", "2"),
        ("2±x", "2"),
        ("sqrt(3)", "3"),
        ("sqrt 3", "3"),
        ("√(3)", "3"),
        ("∛3", "3"),
        ("3 sqrt(2)", "2"),
        ("3sqrt(2)", "2"),
        ("3 sqrt(x)", "3"),
        ("3 sin x", "3"),
        ("log_2(8)", "8"),
        ("log_{2}(8)", "8"),
        ("\\log_2 8", "8"),
        ("log 8", "8"),
        ("ln(2)", "2"),
        ("x = 2 mod 7", "7"),
        ("f(3)", "3"),
        ("max(2, 3)", "3"),
        ("3pi", "3"),
        ("3 pi", "3"),
        ("3θ", "3"),
        ("3*x", "3"),
        ("3 * x", "3"),
        ("3**x", "3"),
        ("3·x", "3"),
        ("3+x", "3"),
        ("3 - x", "3"),
        ("3*sqrt(x)", "3"),
        ("3/x", "3"),
        ("3 / (x)", "3"),
        ("3⁄4", "4"),
        ("2∙3", "3"),
        ("2(3)", "3"),
        ("(2)(3)", "3"),
        ("2(+3)", "3"),
        ("10 - (7)", "7"),
        ("10 - [7]", "7"),
        ("10 - ((7))", "7"),
        ("10 ** (3)", "3"),
        ("10 * (3)", "3"),
        ("-(3)", "3"),
        ("x - (3)", "3"),
        ("sqrt{2}", "2"),
        ("3(x)", "3"),
        # A minus is never overlooked, nor are groups of digits.
        ("–5", "5"),
        ("－5", "5"),
        ("- 5", "5"),
        ("-$ 5", "5"),
        ("x = - 5", "5"),
        ("The answer is - 5", "5"),
        ("\\boxed{1{,}234}", "234"),
        ("1\\,234", "234"),
        ("1 234", "234"),
        # Right, but no arithmetic is done.
        ("10^{3}", "1000"),
        ("\\frac{3}{4}", "3/4"),
    ],
)
def test_a_wrong_answer_is_found_wrong(prediction: str, answer: Any) -> None:
    assert math_score(prediction, answer) == 0.0


NUMBERS = st.integers(-(10**12), 10**12) | st.decimals(-(10**6), 10**6, places=3)


@given(NUMBERS, st.sampled_from(["{}", "${}", "{}%", "{} apples", "= {}.", "\\boxed{{{}}}", "2 + 2\n#### {}"]))
def test_a_number_is_found_however_it_is_written(number: Any, shape: str) -> None:
    assert math_score(shape.format(f"{number:,}"), str(number)) == 1.0
    assert math_score(shape.format(number), f"#### {number:,}") == 1.0
    assert math_score(shape.format(number), str(number + 1)) == 0.0


@given(st.text(max_size=30) | st.text("0123456789.,-/$%e \\boxed{}#^:–*x", max_size=20))
def test_any_text_can_be_compared_and_matches_itself(text: str) -> None:
    asked = math_answer(text)
    assert math_score(text, "no such answer, in any text") == 0.0
    assert math_score("", text) == 0.0
    if any(character.isalnum() for character in asked):
        assert math_score(text, text) == 1.0
        assert math_answer(asked) == asked


def test_long_and_nasty_predictions_are_read_in_time_and_without_an_error() -> None:
    units = ("1", "1,", "1 /", "111 ", "- - 5", "- ", "m^{", "a- ", "\\boxed{", "\\text{")
    units += ("log_", "f(", "± ", "3*", "sqrt ", "(1", "1)")
    nasty = [unit * 50_000 for unit in units] + ["1e" + "9" * 50_000, "1" + " " * 50_000, "x" + " " * 50_000 + "* 5"]

    def score() -> None:
        assert [math_score(text, "72") for text in nasty] == [0.0] * len(nasty)
        assert [math_score(text, "x") for text in nasty] == [0.0] * len(nasty)

    assert cpu_s(score, 3.0) < 3.0


def test_a_box_is_read_to_its_own_end() -> None:
    assert boxed("\\boxed{1} so \\boxed{ \\frac{1}{2} } done}") == "\\frac{1}{2}"
    assert boxed("\\boxed{1") is None and boxed("1") is None


# Searching, code


def test_a_search_that_was_answered_is_rewarded_once() -> None:
    asked = Message.assistant("")
    found, failed = Message.tool("[1] Velm", name="search"), Message.tool("error: search: no key", name="search")
    other = Message.tool("4", name="calculator")
    assert [searched_reward(said) for said in ((asked, found, found), (asked, failed), (asked, other), ())] == [
        1,
        0,
        0,
        0,
    ]


@dataclass
class Grader:
    """Passes `passed` of two tests, and remembers what it was given."""

    passed: int
    code: str = ""

    def __call__(self, code: str) -> Verdict:
        self.code = code
        outcomes = [Outcome.PASSED] * self.passed + [Outcome.FAILED] * (2 - self.passed)
        return Verdict(per_test=dict(zip("ab", outcomes, strict=True)))


def test_code_earns_its_reward_when_all_tests_pass_and_its_share_is_logged() -> None:
    assert [code_reward("x = 1", Grader(n)) for n in (0, 1, 2)] == [
        {"reward": 0.0, "success": 0.0, "share": 0.0},
        {"reward": 0.0, "success": 0.0, "share": 0.5},
        {"reward": 1.0, "success": 1.0, "share": 1.0},
    ]
    grader = Grader(2)
    total, parts = score("code_reward", "Here:\n```python\nx = 1\n```\nDone.", grade=grader)
    assert grader.code == "x = 1\n"
    assert (total, parts) == (1.0, {"code_reward": 1.0, "code_reward/share": 1.0, "success": 1.0})


def test_a_program_that_was_handed_in_is_graded_as_it_is_and_not_read_as_a_text() -> None:
    grader = Grader(2)
    code = 'x = """\n```python\ny\n```\n"""'
    score("code_reward", "I am done.", grade=grader, handed_in_code=code)
    assert grader.code == code
    score("code_reward", "I am done.", grade=grader, handed_in_code="")
    assert grader.code == ""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x = 1", "x = 1"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```python\nx = 1\n```\nbetter:\n```py\nx = 2\n```\n", "x = 2\n"),
        ("```python\nx = 1\n", "x = 1\n"),
        ("```python\ny = '''\n   a ``` b\n'''\n```", "y = '''\n   a ``` b\n'''\n"),
        ("```python\nx = 1\n```\nIt prints\n```json\n1\n```", "x = 1\n"),
        ('```python title="x"\nx = """\n    ```\n"""\n```', 'x = """\n    ```\n"""\n'),
        ("say `x` twice", "say `x` twice"),
        ("", ""),
    ],
)
def test_code_is_taken_out_of_the_last_block(text: str, code: str) -> None:
    assert code_of(text) == code
