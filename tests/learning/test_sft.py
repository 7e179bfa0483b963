"""The supervised warm start: what is trained, at which rate, and that the loss falls."""

import functools
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fakes import END, ROLE_IDS, ByteChatFormat, save_tiny_model
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.agent.messages import Message
from agent_rl.envs.nat.demonstrations import demonstration_turns
from agent_rl.envs.nat.factory.generate import STARTER_FAMILIES, STARTER_LEVELS, generate_specs
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.errors import ConfigError
from agent_rl.learning.sft import (
    Conversation,
    SftProgress,
    SftSettings,
    copy_task,
    render_conversation,
    schedule,
    train_sft,
)
from agent_rl.modeling.minimind import MiniMindForCausalLM


class WritingFormat(ByteChatFormat):
    """Can also render what an assistant should write."""

    def render_completion(self, message: Message) -> list[int]:
        return [*message.content.encode(), END]


def test_only_what_the_assistant_writes_is_trained() -> None:
    turns = [(Message.assistant("ab"), (Message.tool("x"),)), (Message.assistant("c"), ())]
    conversation = render_conversation(WritingFormat(), [Message.user("q")], turns, ())
    user, assistant, tool = ROLE_IDS["user"], ROLE_IDS["assistant"], ROLE_IDS["tool"]
    prompt, suffix = [user, ord("q"), END, assistant], [tool, ord("x"), END, assistant]
    assert conversation.token_ids == [*prompt, ord("a"), ord("b"), END, *suffix, ord("c"), END]
    assert conversation.loss_mask == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1]


def test_the_learning_rate_rises_stays_and_falls() -> None:
    settings = SftSettings(num_conversations=1600, warmup_steps=10, decay_share=0.4)
    factors = [schedule(step, 100, settings) for step in (1, 5, 10, 60, 80, 98, 100)]
    assert factors == pytest.approx([0.1, 0.5, 1.0, 1.0, 0.5, 0.05, 0.05])


def test_the_loss_falls_on_repeated_conversations(tmp_path: Path) -> None:
    model = MiniMindForCausalLM.from_pretrained(save_tiny_model(tmp_path))
    conversation = Conversation(token_ids=[1, 8, 9, 10, 11, 2], loss_mask=[0, 0, 0, 1, 1, 1])
    losses: list[float] = []
    settings = SftSettings(num_conversations=400, batch_size=4, warmup_steps=5, autocast=False)
    train_sft(model, itertools.repeat(conversation), settings, lambda _step, _num, loss, _speed: losses.append(loss))
    assert len(losses) == 2
    assert losses[1] < 0.5 < losses[0]


def test_the_loss_is_the_mean_over_the_learned_tokens_of_a_batch(tmp_path: Path) -> None:
    model = MiniMindForCausalLM.from_pretrained(save_tiny_model(tmp_path))
    short = Conversation(token_ids=[1, 8, 9, 2], loss_mask=[0, 0, 1, 1])
    turns = Conversation(token_ids=[1, 7, 5, 6, 2, 9, 11, 2], loss_mask=[0, 1, 1, 0, 0, 0, 1, 0])
    surprises = []
    for conversation, learned in ((short, (2, 3)), (turns, (1, 2, 6))):
        ids = torch.tensor(conversation.token_ids)
        logprobs = model.logits(model.hidden_states(ids[None]))[0].log_softmax(-1)
        surprises += [-logprobs[place - 1, ids[place]].item() for place in learned]
    losses: list[float] = []
    settings = SftSettings(num_conversations=2, batch_size=2, autocast=False)
    train_sft(model, iter([short, turns]), settings, lambda _step, _num, loss, _speed: losses.append(loss))
    assert losses == pytest.approx([sum(surprises) / 5])


def test_conversations_of_which_nothing_is_learned_have_no_loss(tmp_path: Path) -> None:
    model = MiniMindForCausalLM.from_pretrained(save_tiny_model(tmp_path))
    read_alone = Conversation(token_ids=[1, 8, 9, 2], loss_mask=[0, 0, 0, 0])
    losses: list[float] = []
    settings = SftSettings(num_conversations=1, batch_size=1, autocast=False)
    train_sft(model, iter([read_alone]), settings, lambda _step, _num, loss, _speed: losses.append(loss))
    assert losses == [0.0]
    assert all(weight.isfinite().all() for weight in model.parameters())


def random_conversations(stop_after: int | None = None) -> Iterator[Conversation]:
    rng = random.Random(5)
    for number in itertools.count():
        if number == stop_after:
            raise KeyboardInterrupt
        ids = [rng.randrange(4, 20) for _ in range(rng.randint(6, 12))]
        yield Conversation(token_ids=ids, loss_mask=[0, 0] + [1] * (len(ids) - 2))


def test_a_training_that_was_cut_off_ends_as_one_that_was_not(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    settings = SftSettings(num_conversations=80, batch_size=4, warmup_steps=10)
    ends = []
    for stop_after in (None, 50):  # batches are read 8 at a time, so that 8 steps are done
        model = MiniMindForCausalLM.from_pretrained(folder)
        progress = SftProgress(tmp_path / f"{stop_after}.pt", of="one", every_s=0.0)
        if stop_after:
            with pytest.raises(KeyboardInterrupt):
                train_sft(model, random_conversations(50), settings, lambda *_: None, progress=progress)
            with pytest.raises(ConfigError, match="another folder"):
                SftProgress(progress.path, of="other").is_there()
            model = MiniMindForCausalLM.from_pretrained(folder)
            assert progress.is_there()
        steps: list[tuple[int, float]] = []
        train_sft(
            model,
            random_conversations(),
            settings,
            lambda n, _, loss, __, steps=steps: steps.append((n, loss)),
            progress=progress,
        )
        ends.append((steps, model.state_dict()))
    (straight, weights), (resumed, others) = ends
    assert straight == resumed and all(torch.equal(weights[name], others[name]) for name in weights)


@functools.cache
def starter_specs() -> list[NATSpec]:
    return list(itertools.islice(generate_specs(0, ["sft"], families=STARTER_FAMILIES, levels=STARTER_LEVELS), 200))


def files_of(turns: list) -> dict[str, str]:
    calls = turns[0][0].tool_calls
    return {call.arguments["path"]: call.arguments["content"] for call in calls if call.name == "file_write"}


def test_without_faults_a_demonstration_is_the_reference_project_and_is_submitted() -> None:
    for spec in starter_specs()[:40]:
        turns = demonstration_turns(spec, faulty_share=0.0, seed=0)
        assert files_of(turns) == render_project(spec)
        assert turns[-1][0].tool_calls[-1].name == "submit"


def test_the_share_of_faulty_demonstrations_is_as_configured_and_most_forget_the_error_check() -> None:
    faulty = forgetful = 0
    for spec in starter_specs():
        files = files_of(demonstration_turns(spec, faulty_share=0.5, seed=0))
        faulty += files != render_project(spec)
        forgetful += "test_error" not in files[f"tests/test_{spec.package}.py"]
    assert 0.4 < faulty / len(starter_specs()) < 0.6
    assert 0.7 < forgetful / faulty < 0.9


def test_a_demonstration_depends_on_its_seed_alone() -> None:
    first, second = (demonstration_turns(starter_specs()[0], faulty_share=0.5, seed=3) for _ in range(2))
    assert first == second


@given(token_ids=st.lists(st.integers(0, 50), min_size=1, max_size=200), seed=st.integers(0, 1000))
def test_a_repeated_text_comes_in_pieces_whose_first_two_tokens_are_not_trained_on(
    token_ids: list[int], seed: int
) -> None:
    numbered = [100 * place + token for place, token in enumerate(token_ids)]
    conversation = copy_task(numbered, random.Random(seed))
    size = len(numbered)
    again, mask = conversation.token_ids[size:], conversation.loss_mask[size:]
    assert conversation.token_ids[:size] == numbered
    assert sorted(again) == numbered
    assert conversation.loss_mask[:size] == [0] * size
    starts = [place for place in range(size) if place == 0 or again[place - 1] // 100 + 1 != again[place] // 100]
    assert all(mask[place : place + 2] == [0, 0][: size - place] for place in starts)
    assert all(again[place - 1] // 100 + 1 == again[place] // 100 for place in range(size) if mask[place])


def test_every_other_text_is_repeated_unchanged() -> None:
    rng = random.Random(0)
    texts = [copy_task(list(range(100)), rng).token_ids[100:] for _ in range(400)]
    assert 160 < sum(text == list(range(100)) for text in texts) < 240


def test_a_plain_conversation_is_trained_on_from_its_second_token() -> None:
    conversation = Conversation(token_ids=[7, 8, 9, 5], loss_mask=[0, 0, 1, 1])
    assert conversation.with_full_loss() == Conversation(token_ids=[7, 8, 9, 5], loss_mask=[0, 1, 1, 1])
