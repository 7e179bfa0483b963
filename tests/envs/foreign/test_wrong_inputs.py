"""What a person or a model gets wrong with environments of others; written before the adapters."""

import sys
from typing import Any

import pytest
from foreign_fakes import Guess, load_fake

from agent_rl.agent.messages import Message
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import ConfigError, DataError
from agent_rl.records import StopReason

GUESS = {"make": "foreign_fakes:Guess"}


@pytest.fixture
def fakes(request: pytest.FixtureRequest) -> None:
    for name in ("reasoning_gym", "verifiers"):
        load_fake(name, request)


def refusal(name: str, options: dict[str, Any], task: dict[str, Any] | None = None) -> str:
    """The sentence that refuses options or, where they are right, a row."""
    with pytest.raises((ConfigError, DataError)) as refused:
        factory = make_env_factory(name, options)
        with factory:
            factory.check_task(task or {}, "rows.jsonl:3")
    text = str(refused.value)
    assert "\n" not in text and len(text) < 400
    return text


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("reasoning_gym", {"dataset": "spell_backward"}),
        ("verifiers", {"id": "reverse-text"}),
        ("gymnasium", {"make": "FrozenLake-v1"}),
        ("skyrl_gym", {"id": "gsm8k"}),
    ],
)
def test_a_missing_package_is_one_sentence_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    text = refusal(name, options)
    assert "pip install " in text and name.replace("_", "-") in text.partition("pip install ")[2]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "env.options.dataset"),
        ({"dataset": "spell_backwards"}, "did you mean 'spell_backward'?"),
        ({"dataset": []}, "env.options.dataset"),
        ({"dataset": {"spell_backward": 3}}, "env.options.dataset.spell_backward"),
        ({"dataset": {"spell_backward": {"max_wordlen": 3}}}, "max_wordlen"),
        ({"dataset": {"spell_backward": {"min_word_len": 9, "max_word_len": 3}}}, "max_word_len"),
        ({"dataset": {"spell_backward": {"seed": 3}}}, "--seed"),
        ({"dataset": {"spell_backward": {"size": 3}}}, "--num-train"),
        ({"dataset": "spell_backward", "rewards": 1}, "rewards"),
    ],
)
def test_options_of_reasoning_gym_that_cannot_be(fakes: None, options: dict[str, Any], expected: str) -> None:
    assert expected in refusal("reasoning_gym", options)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, "dataset"),
        ({"dataset": "spell_backwards", "question": "?", "answer": "a", "metadata": {}}, "did you mean"),
        ({"dataset": "spell_backward"}, "question"),
        ({"dataset": "spell_backward", "question": "?", "answer": "a"}, "metadata"),
        ({"dataset": "spell_backward", "question": "?", "answer": 1, "metadata": {}}, "answer"),
        ({"dataset": "spell_backward", "question": "?", "answer": "a", "metadata": {}, "parameters": 3}, "parameters"),
        ({"dataset": "spell_backward", "question": "?", "answer": "a", "metadata": {}, "parameters": {"x": 1}}, "x"),
    ],
)
def test_rows_that_are_no_tasks_of_reasoning_gym(fakes: None, row: dict[str, Any], expected: str) -> None:
    text = refusal("reasoning_gym", {"dataset": "spell_backward"}, row)
    assert text.startswith("rows.jsonl:3: ") and expected in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "env.options.id"),
        ({"id": "no-such-environment"}, "no-such-environment"),
        ({"id": "vf-reverse", "args": {"nums": 3}}, "nums"),
        ({"id": "vf-group-reward"}, "group"),
        ({"id": "vf-sandbox"}, "sandbox"),
        ({"id": "vf-nothing"}, "load_environment"),
    ],
)
def test_environments_of_verifiers_that_cannot_be_carried_over(
    fakes: None, options: dict[str, Any], expected: str
) -> None:
    assert expected in refusal("verifiers", options)


@pytest.mark.parametrize(("row", "expected"), [({}, "prompt"), ({"prompt": 3}, "prompt"), ({"prompt": [3]}, "prompt")])
def test_rows_that_are_no_tasks_of_verifiers(fakes: None, row: dict[str, Any], expected: str) -> None:
    text = refusal("verifiers", {"id": "vf-reverse"}, row)
    assert text.startswith("rows.jsonl:3: ") and expected in text


@pytest.mark.parametrize(
    ("options", "task", "expected"),
    [
        ({}, None, "env.options.make"),
        ({"make": "foreign_fakes:NoSuch"}, None, "NoSuch"),
        ({"make": "no_such_module_here:make"}, None, "no_such_module_here"),
        ({**GUESS, "kwargs": {"secretly": 3}}, {"seed": 3}, "secretly"),
        ({**GUESS, "describe": "foreign_fakes:NoSuch"}, None, "NoSuch"),
        (GUESS, {"seed": "three"}, "seed"),
        (GUESS, {"seed": True}, "seed"),
        (GUESS, {"seed": 3, "options": []}, "options"),
    ],
)
def test_options_and_rows_of_gymnasium_that_cannot_be(
    options: dict[str, Any], task: dict[str, Any] | None, expected: str
) -> None:
    assert expected in refusal("gymnasium", options, task)


@pytest.mark.parametrize(
    ("faulty", "expected"),
    [
        ({"first": 3}, "describe"),
        ({"first": {"text": "hi"}}, "describe"),
        ({"answer": b"bytes"}, "describe"),
        ({"result": ("higher", 0.0)}, "5"),
        ({"result": None}, "5"),
        ({"result": ("higher", 0.0, {"a": 1}, True)}, "done, info"),
        ({"result": ("higher", 0.0, "no", False, {})}, "true or false"),
        ({"result": ("higher", 0.0, None, False, {})}, "true or false"),
        ({"result": ("higher", 0.0, False, False, [1])}, "a dictionary"),
        ({"reward": "much"}, "reward"),
        ({"reward": None}, "reward"),
    ],
)
def test_what_an_environment_of_gymnasium_gives_back_wrongly_is_one_sentence(
    faulty: dict[str, Any], expected: str
) -> None:
    with make_env_factory("gymnasium", {**GUESS, "kwargs": faulty}) as factory:
        env = factory()
        with pytest.raises(ConfigError, match=expected):
            env.reset({"task_id": "t", "seed": 1})
            env.step(Message.assistant("5"))
        env.close()


@pytest.mark.parametrize(
    ("options", "row", "expected"),
    [
        ({"id": "gsm9k"}, None, "did you mean 'gsm8k'?"),
        ({"id": "lcb"}, None, "code_exec"),
        ({"id": "searchcode"}, None, "code_exec"),
        ({"id": "text2sql"}, None, "outside the sandbox"),
        ({}, {"prompt": [{"role": "user", "content": "?"}], "env_class": "text2sql"}, "outside the sandbox"),
        ({"id": "gsm8k"}, {}, "prompt"),
        ({"id": "gsm8k"}, {"prompt": "What?"}, "prompt"),
        ({"id": "gsm8k"}, {"prompt": [{"role": "user", "content": "What?"}]}, "reward_spec"),
        ({"id": "gsm8k"}, {"prompt": [{"role": "user", "content": "?"}], "env_class": "aime"}, "env_class"),
        ({}, {"prompt": [{"role": "user", "content": "?"}]}, "env_class"),
        (
            {"id": "search", "env_config": {"topk": 3}},
            {"prompt": [{"role": "user", "content": "?"}], "reward_spec": {"ground_truth": {"target": "a"}}},
            "search_url",
        ),
    ],
)
def test_options_and_rows_of_skyrl_gym_that_cannot_be(
    options: dict[str, Any], row: dict[str, Any] | None, expected: str
) -> None:
    pytest.importorskip("skyrl_gym")
    assert expected in refusal("skyrl_gym", options, row)


def test_an_episode_that_is_cut_off_earns_nothing_of_a_gymnasium_environment_and_closes_it() -> None:
    with make_env_factory("gymnasium", GUESS) as factory:
        env = factory()
        env.reset({"task_id": "t", "seed": 1})
        assert env.truncate(StopReason.MAX_TURNS).reward == 0.0
        env.close()
    assert Guess.num_open == 0


HOSTILE = (
    "__import__('os').system('true')",
    "[c for c in open('/etc/passwd')]",
    "().__class__.__mro__[1].__subclasses__()",
    "9**9**9**9",
    "[0]*99999999999",
    "lambda: 1",
    "x.__class__",
    "factorial(99999999)",
    "9" * 100_000,
    "((((9**19)**19)**19)**19)**19",
)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "dataset", ["string_insertion", "countdown", "simple_integration", "polynomial_multiplication"]
)
def test_a_scorer_that_runs_its_input_as_python_never_gets_hostile_text(dataset: str, text: str) -> None:
    from agent_rl.envs.foreign.harmless import is_harmless

    assert not is_harmless(dataset, text)
