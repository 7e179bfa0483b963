"""A chat template of one's own, and values for variables of one: in prompts and in the saved model."""

from copy import deepcopy
from pathlib import Path

import pytest
from builders import make_trainer
from chat_templates import tokenizer_of
from fakes import save_tiny_model, tiny_config
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.agent.messages import Message
from agent_rl.errors import ConfigError
from agent_rl.policies.hf_loading import load_hf_tokenizer
from agent_rl.policies.template_values import set_template_values

EMPTY_THOUGHT = "<think>\n\n</think>\n\n"


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    """One of the test's own, to change; `tokenizer_of` gives all tests the same."""
    return deepcopy(tokenizer_of("qwen3"))


def prompt_of(tokenizer: object) -> str:
    ids = ChatFormat(tokenizer).render_prompt([Message.user("Hi")])
    return tokenizer.decode(ids)


def test_a_value_changes_prompts_and_stays_with_the_saved_tokenizer(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    assert EMPTY_THOUGHT not in prompt_of(tokenizer)
    set_template_values(tokenizer, {"enable_thinking": False})
    assert prompt_of(tokenizer).endswith(EMPTY_THOUGHT)
    tokenizer.save_pretrained(tmp_path)
    saved = AutoTokenizer.from_pretrained(tmp_path)
    assert prompt_of(saved).endswith(EMPTY_THOUGHT)
    plain = saved.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False)
    assert plain.endswith(EMPTY_THOUGHT)
    template = saved.chat_template
    set_template_values(saved, {"enable_thinking": False})
    assert saved.chat_template == template


def test_replies_are_written_behind_the_prompt_as_it_is_then(tokenizer: PreTrainedTokenizerBase) -> None:
    set_template_values(tokenizer, {"enable_thinking": False})
    chat = ChatFormat(tokenizer)
    reply = chat.render_completion(Message.assistant("Hello"))
    assert tokenizer.decode(reply) == "Hello<|im_end|>"
    assert chat.parse_completion(reply) == Message.assistant("Hello")


@pytest.mark.parametrize("value", [True, 3, 0.5, 'with "quotes"', "line\nbreak", "ä"])
def test_values_of_every_kind_arrive_as_they_are(tokenizer: PreTrainedTokenizerBase, value: object) -> None:
    tokenizer.chat_template = "{{ mine }}|{{ messages[0].content }}"
    set_template_values(tokenizer, {"mine": value})
    shown = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert shown == f"{value}|Hi"


def test_a_variable_that_the_template_does_not_read_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ConfigError, match="enable_thinkin"):
        set_template_values(tokenizer, {"enable_thinkin": False})
    set_template_values(tokenizer, {})


def test_a_template_of_ones_own_is_what_a_run_shows_and_saves(tmp_path: Path) -> None:
    own = save_tiny_model(tmp_path / "model") / "chat_template.jinja"
    template = tmp_path / "mine.jinja"
    template.write_text(own.read_text(encoding="utf-8").replace("<|im_start|>", "start"), encoding="utf-8")
    own.unlink()
    config = tiny_config(tmp_path, model={"chat_template": str(template)}, train={"steps": 1})
    with make_trainer(config) as trainer:
        assert prompt_of(trainer.policy.tokenizer).startswith("startuser")  # the tiny model has no <|im_start|>
        trainer.train()
    saved = AutoTokenizer.from_pretrained(tmp_path / "runs/tiny/checkpoints/step_00001/model")
    assert saved.chat_template == template.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), (b"\xff\xfe", "no text in UTF-8"), (b"Hi", "reads no 'messages'")]
)
def test_a_file_that_is_no_template_is_one_sentence(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "template.jinja"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"model.chat_template = .*{reason}"):
        load_hf_tokenizer(save_tiny_model(tmp_path / "model"), chat_template=path)
