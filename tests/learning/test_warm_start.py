"""What a warm start begins with: options that a tokenizer of another kind cannot take are one sentence, at once."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from agent_rl.agent.phrase_bpe import as_pretrained
from agent_rl.errors import ConfigError
from agent_rl.learning.warm_start import WarmStart


def plain_tokenizer(folder: Path, *added: str) -> Path:
    """As GPT-2's and public MiniMind's: words are cut by the byte-level step."""
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_tokens(list(added))
    as_pretrained(tokenizer).save_pretrained(folder)
    return folder


def begin(folder: Path, **options: object) -> WarmStart:
    others = {"new_tokenizer": False, "more_words": 0, "names_apart": False, "hidden_size": 64, "num_layers": 1}
    return WarmStart(agent_type="hf", init_from=folder, **(others | options))


@pytest.mark.parametrize(
    ("added", "options", "named"),
    [
        ((), {"names_apart": True}, "--names-apart"),
        ((), {"names_apart": True, "more_words": 9}, "--names-apart"),
        (("<think>",), {"more_words": 9}, "--more-words 9"),
    ],
)
def test_options_that_a_tokenizer_cannot_take_are_named_with_its_folder(
    tmp_path: Path, added: tuple[str, ...], options: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        begin(plain_tokenizer(tmp_path, *added), **options)
    assert str(caught.value).startswith(f"{named} with --init-from {tmp_path}: ")


def test_a_plain_tokenizer_takes_more_words_and_stays_without_options(tmp_path: Path) -> None:
    folder = plain_tokenizer(tmp_path)
    assert len(begin(folder, more_words=9).tokenizer([])) == len(begin(folder).tokenizer([])) == 259
