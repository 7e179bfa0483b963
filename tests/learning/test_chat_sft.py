"""Fine-tuning on conversations of one's own: what is read and trained, resuming, several processes."""

import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import one_line_error, run_here
from distributed.ranks import start_ranks
from fakes import save_tiny_model
from safetensors.torch import load_file
from tiny_models import save_tiny_causal_lm

from agent_rl.agent.chat_format import make_chat_format
from agent_rl.agent.messages import ToolCall
from agent_rl.config.load import parse_config
from agent_rl.distributed.backend import Backend
from agent_rl.distributed.checkpoint import latest_checkpoint
from agent_rl.errors import CheckpointError, DataError
from agent_rl.learning.chat_sft import ChatSft, ChatSftSettings, num_steps
from agent_rl.learning.conversations import conversation_sample, read_conversation
from agent_rl.policies.make_policy import load_trained_model
from agent_rl.policies.minimind_policy import load_tokenizer
from agent_rl.policies.model_files.trained_for import TrainedFor, read_trained_for
from agent_rl.scripts import sft_chats

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
USER, REPLY = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
WORDS = ["pest", "name", "roam", "tour", "mist", "gape", "sort", "upon"]
ROWS = [{"prompt": word, "completion": word[::-1]} for word in WORDS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chats")
    save_tiny_model(folder / "minimind")
    save_tiny_causal_lm(folder / "llama")
    (folder / "chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return folder


def sft(folder: Path, *words: str | Path, model: str = "llama", data: str = "chats.jsonl", out: Path) -> Any:
    kind = "minimind" if model == "minimind" else "huggingface"
    settings = ("run.device=cpu", "policy.max_context=64", "train.learning_rate=1e-2")
    given = ("--data", folder / data, "--model-path", folder / model, "--policy-type", kind, "--output-dir", out)
    return run_here("sft", *given, "--batch-size", "4", *words, *settings, folder=folder)


def metrics_of(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


# Rows


def test_messages_with_calls_and_tools_are_read_and_only_the_assistants_words_are_trained(folder: Path) -> None:
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "mist"}
    row = {
        "messages": [USER, calling, answer, {"role": "assistant", "content": "tear"}],
        "tools": [TOOL],
        "prompt": None,
    }
    messages, tools, _ = read_conversation(row, "here")
    assert messages[1].tool_calls == (ToolCall(name="add", arguments={"a": 2}),)
    assert [tool.name for tool in tools] == ["add"]
    chat = make_chat_format(load_tokenizer(folder / "minimind"), "hf")
    spoken = [{"role": "user", "content": "pest"}, {"role": "assistant", "content": "tame"}]
    spoken += [{"role": "user", "content": "more"}, {"role": "assistant", "content": "sour"}]
    sample = conversation_sample(chat, *read_conversation({"messages": spoken}, "here"))
    trained = [token for token, is_trained in zip(sample.token_ids, sample.loss_mask, strict=True) if is_trained]
    ends = [place for place, token in enumerate(trained) if token in chat.stop_token_ids]
    assert len(ends) == 2
    first, second = trained[: ends[0] + 1], trained[ends[0] + 1 :]
    assert (chat.parse_completion(first).content, chat.parse_completion(second).content) == ("tame", "sour")


def test_messages_of_weight_0_are_read_and_not_learned(folder: Path) -> None:
    chat = make_chat_format(load_tokenizer(folder / "minimind"), "hf")
    spoken = [{"role": "user", "content": "pest"}, {"role": "assistant", "content": "tame", "weight": 0}]
    spoken += [{"role": "user", "content": "more"}, {"role": "assistant", "content": "sour", "weight": 1}]
    sample = conversation_sample(chat, *read_conversation({"messages": spoken}, "here"))
    whole = conversation_sample(
        chat, *read_conversation({"messages": [{**each, "weight": 1} for each in spoken]}, "here")
    )
    assert sample.token_ids == whole.token_ids
    trained = [token for token, is_trained in zip(sample.token_ids, sample.loss_mask, strict=True) if is_trained]
    assert chat.parse_completion(trained).content == "sour"


def test_a_message_without_text_may_call_reason_or_be_left_unlearned() -> None:
    for reply in ({"tool_calls": [CALL]}, {"reasoning_content": "2 + 2"}, {"weight": 0}):
        row = {"messages": [USER, {"role": "assistant", "content": "", **reply}, USER, REPLY]}
        assert len(read_conversation(row, "here").messages) == 4


def test_prompts_and_completions_are_conversations_too() -> None:
    (user, reply), tools, _ = read_conversation({"prompt": "2 + 2?", "completion": "4"}, "here")
    assert (user.role, user.content, reply.role, reply.content, tools) == ("user", "2 + 2?", "assistant", "4", ())
    assert read_conversation({"prompt": [USER], "completion": [REPLY]}, "here")[0][1].content == "4"


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"messages": [USER, {**REPLY, "weight": 0.5}]}, "weight is 0.5 in a message"),
        ({"messages": [USER, {**REPLY, "weight": 0}]}, "nothing to learn"),
        ({"messages": [USER, {**REPLY, "content": " \n"}]}, "^here has an empty message"),
        ({"messages": [USER, {**REPLY, "content": ""}, USER, REPLY]}, "^here has an empty message"),
        ({"prompt": "2 + 2?", "completion": ""}, "^here has an empty message"),
        ({"text": "2 + 2 = 4"}, "^here: the row has neither 'messages' nor 'prompt'"),
        ({"message": "2 + 2?"}, "did you mean 'messages'"),
        ({"chosen": "4", "conversion": "5"}, "its columns are chosen, conversion$"),
        ({"message": [USER, REPLY]}, "call the column 'messages'"),
        ({"conversations": [{"from": "human", "value": "hi"}]}, "'from' and 'value'.*'role'.*'content'"),
        ({"messages": [{"from": "human", "value": "hi"}]}, "'from' and 'value'.*'role'.*'content'"),
        ({"instruction": "hi", "input": "", "output": "yo"}, "'prompt' and 'completion'$"),
        ({"messages": [USER]}, "^here ends with a message of the role 'user'"),
        ({"messages": [REPLY]}, "^here begins with the assistant's message"),
        ({"messages": [USER, REPLY, REPLY]}, "two assistant messages in a row"),
        ({"messages": [USER, {"role": "system", "content": "x"}, USER, REPLY]}, "system message behind others"),
        ({"messages": [{"role": "human", "content": "x"}, REPLY]}, r"^here: messages\[0\].role is 'human'"),
        ({"messages": "hello"}, "^here: messages is 'hello'"),
        ({"messages": [USER, REPLY], "tools": [{"name": "add"}]}, r"^here: tools\[0\]"),
        ({"prompt": 3, "completion": "4"}, "^here: prompt and completion"),
    ],
)
def test_a_wrong_row_is_one_sentence(row: dict[str, Any], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as caught:
        read_conversation(row, "here")
    assert "\n" not in str(caught.value)


# Training


def training_of(
    folder: Path, out: Path, *, model: str = "llama", checkpoint: Path | None = None, **train: Any
) -> ChatSft:
    kind = "minimind" if model == "minimind" else "huggingface"
    settings = ChatSftSettings(batch_size=4, epochs=3, save_every=100, evaluate_every=100)
    raw = {
        "run": {"device": "cpu"},
        "data": {"train_path": "unused"},
        "env": {"name": "prompts"},
        "model": {"path": str(folder / model)},
        "policy": {"type": kind, "max_context": 64, "max_new_tokens": 1},
        "train": {"learning_rate": 1e-2, "steps": num_steps(len(ROWS), settings), **train},
    }
    config = parse_config(raw, source="test")
    backend = Backend("cpu")
    loaded = load_trained_model(config, backend, checkpoint=None if checkpoint is None else checkpoint / "model")
    chat = make_chat_format(loaded.tokenizer, "hf")
    samples = [conversation_sample(chat, *read_conversation(row, "row")) for row in ROWS]
    training = ChatSft(config, loaded, samples, samples[:3], settings, backend, out)
    if checkpoint is not None:
        training.restore(checkpoint)
    return training


@pytest.mark.parametrize("model", ["llama", "minimind"])
def test_the_loss_is_the_mean_cross_entropy_of_trained_ids(folder: Path, tmp_path: Path, model: str) -> None:
    training = training_of(folder, tmp_path, model=model, micro_batch_tokens=40)
    module = training._model.module
    total, count = 0.0, 0
    for sample in training._held_out:
        ids = torch.tensor([sample.token_ids])
        with torch.no_grad():
            output = module(ids)
        logits = output if isinstance(output, torch.Tensor) else output.logits
        losses = -logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        mask = torch.tensor(sample.loss_mask[1:], dtype=torch.bool)
        total, count = total + float(losses[mask].sum()), count + int(mask.sum())
    metrics = training.evaluate()
    assert metrics["eval/loss"] == pytest.approx(total / count, rel=1e-5)
    assert metrics["eval/perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)


def test_a_training_that_was_stopped_continues_as_if_it_had_not_been(folder: Path, tmp_path: Path) -> None:
    whole: list[dict[str, float]] = []
    training_of(folder, tmp_path / "whole").train(lambda _step, metrics: whole.append(metrics), nullcontext)
    first = training_of(folder, tmp_path / "parts")

    def stop(step: int, _metrics: dict[str, float]) -> None:
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.train(stop, nullcontext)
    first.save(nullcontext)
    checkpoint = latest_checkpoint(tmp_path / "parts" / "checkpoints")
    assert checkpoint is not None and checkpoint.name == "step_00004"
    second, rest = training_of(folder, tmp_path / "parts", checkpoint=checkpoint), []
    second.train(lambda _step, metrics: rest.append(metrics), nullcontext)
    assert [each["train/loss"] for each in rest] == [each["train/loss"] for each in whole[-2:]]
    assert rest[-1]["eval/loss"] == whole[-1]["eval/loss"] < whole[0]["eval/loss"]
    newest = latest_checkpoint(tmp_path / "parts" / "checkpoints")
    with pytest.raises(CheckpointError, match="other conversations"):
        training_of(folder, tmp_path / "parts", checkpoint=newest, steps=7)


# The command


def test_the_command_trains_continues_and_leaves_a_model(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = sft(folder, "--eval-data", folder / "chats.jsonl", "--epochs", "6", out=out)
    assert done.returncode == 0, done.stderr
    rows = metrics_of(out)
    assert [row["step"] for row in rows] == list(range(13))
    assert rows[-1]["eval/loss"] < 0.7 * rows[0]["eval/loss"]
    trained, before = load_file(out / "model/model.safetensors"), load_file(folder / "llama/model.safetensors")
    assert any(not torch.equal(trained[name], before[name]) for name in before)
    again = sft(folder, "--eval-data", folder / "chats.jsonl", "--epochs", "6", out=out)
    assert again.returncode == 0 and "after step 12 of 12" in again.stdout
    assert metrics_of(out) == rows


def test_adapters_alone_are_trained_and_saved(folder: Path, tmp_path: Path) -> None:
    learned = TrainedFor(environment="letters", max_context=40, tasks={"levels": (1, 2)})
    learned.save(folder / "llama")
    done = sft(folder, "model.lora.rank=4", out=tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert read_trained_for(tmp_path / "out/model") == learned
    assert {path.name for path in (tmp_path / "out/model").glob("*.safetensors")} == {"adapter_model.safetensors"}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["train.steps=3"], "--epochs and --batch-size"),
        (["rollout.group_size=3"], "not read by sft"),
        (["policy.max_context=8"], "longer than policy.max_context = 8"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl: no such task file"),
        (["--model-path", "nowhere"], "nowhere"),
        (["--policy-type", "hugingface"], "did you mean 'huggingface'"),
        (["--epochs", "0"], "--epochs"),
        (["--domain", "math"], "--domain: sft takes it without --data alone"),
    ],
)
def test_a_mistake_is_one_sentence(folder: Path, tmp_path: Path, words: list[str], complaint: str) -> None:
    settings = ["--data", str(folder / "chats.jsonl"), "--model-path", str(folder / "llama"), "policy.max_context=64"]
    done = run_here("sft", *settings, "--output-dir", tmp_path / "new", *words, folder=folder)
    assert complaint in one_line_error(done)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [None, 2, 3])
def test_two_processes_learn_what_one_does(folder: Path, tmp_path: Path, stage: int | None) -> None:
    settings = None
    if stage is not None:
        settings = tmp_path / "deepspeed.json"
        settings.write_text(json.dumps({"zero_optimization": {"stage": stage}}))
    overrides = ["run.device=cpu", "policy.max_context=64", "train.learning_rate=1e-2", "train.micro_batch_tokens=40"]
    data = str(folder / "chats.jsonl")
    found = []
    for num in (1, 2):
        out = tmp_path / str(num)
        given = (data, out, str(folder / "llama"), overrides, data, "huggingface", 3, 4, 100, 100)
        ranks = start_ranks(sft_chats.main, *given, folder=out, num=num, deepspeed_config=settings if num > 1 else None)
        assert ranks.wait(timeout_s=300) == [0] * num, ranks.log(0)
        found.append(metrics_of(out))
    alone, together = found
    for one, other in zip(alone, together, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() & {"train/loss", "eval/loss", "optim/grad_norm"}:
            assert one[name] == pytest.approx(other[name], rel=1e-4), (one["step"], name)
