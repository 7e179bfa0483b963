"""The phrase tokenizer: lossless, words stay whole, only phrases of most documents are folded."""

import json
import os
import re
import subprocess
import sys
from functools import reduce
from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from agent_rl.agent.phrase_bpe import (
    _WORD,
    _merge,
    _Pairs,
    as_pretrained,
    split_blanks_before_names,
    train_phrase_bpe,
    with_more_words,
)
from agent_rl.errors import DataError

NAMES = ("amber", "cobalt", "indigo", "walnut", "maple", "cedar", "onyx", "quartz", "nickel", "fern")


def document(index: int) -> str:
    name, unit = NAMES[index % 10], NAMES[(index * 3 + 1) % 10]
    code = f'from nat import Tool\n\n\nclass Config(Tool, name="{name}"):\n    unit: str = "{unit}"  # v1\n'
    code += f"    n = {index % 9}\n"
    call = json.dumps({"name": "file_write", "arguments": {"path": f"src/nat_{name}/tool.py", "content": code}})
    return (
        f"<|im_start|>user\nWrite the agent `{name}` in {unit}, please.\n\n    Keep it short.<|im_end|>\n"
        f"<|im_start|>assistant\n<tool_call>\n{call}\n</tool_call><|im_end|>\n"
    )


CORPUS = [document(index) for index in range(60)]
PHRASES = train_phrase_bpe(CORPUS)
WORDS_ONLY = train_phrase_bpe(CORPUS, min_document_share=1.1)

code_like = st.text(alphabet='nfromt_\\" \n\t:=`+0123é\u2003', max_size=60)
mixtures = st.lists(
    st.sampled_from(
        ["\\n", "\\\\", "\\", "n", "from", " ", "    ", "\n", "_", "amber", '\\"', "class Config", "<tool_call>"]
    )
).map("".join)


def tokens_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([token], skip_special_tokens=False) for token in tokenizer.encode(text).ids]


def byte_ends(tokenizer: Tokenizer, text: str) -> set[int]:
    return set(accumulate(len(token) for token in tokenizer.encode(text).tokens))


@given(st.one_of(st.text(), code_like, mixtures))
@example("")
@example("<|im_end|></tool_call>\\\\n\\n  from")
@settings(max_examples=200, deadline=None)
def test_decoding_an_encoding_gives_any_text_back(text: str) -> None:
    ids = PHRASES.encode(text).ids
    assert PHRASES.decode(ids, skip_special_tokens=False) == text


@given(st.one_of(code_like, mixtures.filter(lambda text: "<tool_call>" not in text)))
@example("\\nfrom nat import")
@example("\\\\nfrom \\\\\\nfrom")
@example("x\n    from   class a  # v1")
@settings(max_examples=200, deadline=None)
def test_stage_one_merges_never_cross_word_pieces(text: str) -> None:
    ends_of_pieces = set(accumulate(len(piece.encode()) for piece in re.findall(_WORD, text)))
    assert ends_of_pieces <= byte_ends(WORDS_ONLY, text)


@given(st.one_of(code_like, mixtures, st.sampled_from(CORPUS)))
@settings(max_examples=150, deadline=None)
def test_phrases_only_join_what_stage_one_made(text: str) -> None:
    assert byte_ends(PHRASES, text) <= byte_ends(WORDS_ONLY, text)


def test_boilerplate_is_folded_and_names_and_digits_stay_apart() -> None:
    text = document(7)
    tokens = tokens_of(PHRASES, text)
    assert len(tokens) < 0.6 * len(tokens_of(WORDS_ONLY, text))
    assert any("from nat import Tool\\n\\n\\n" in token for token in tokens)
    assert "_quartz" in tokens
    assert "quartz" in tokens
    assert "7" in tokens
    assert tokens_of(PHRASES, "31.07") == ["3", "1", ".", "0", "7"]


def test_names_that_no_token_holds_have_the_same_tokens_after_a_blank_a_quote_and_a_bracket() -> None:
    tokenizer = Tokenizer.from_str(PHRASES.to_str())
    split_blanks_before_names(tokenizer)
    for name in ("mitten_x810", "zucchiniVioletlobster", "the_quartz", "Maplewood7", "agate", "m"):
        alone = tokens_of(tokenizer, name)
        for before, after in (("def ", "("), ("`", "`"), ("(", " / 2"), ("import ", "\\n"), ('= "', '"')):
            tokens = tokens_of(tokenizer, before + name + after)
            assert any(tokens[i : i + len(alone)] == alone for i in range(len(tokens))), (before, tokens)
    assert tokens_of(PHRASES, "def agate") != tokens_of(tokenizer, "def agate")


@given(st.one_of(st.text(), code_like, mixtures))
@settings(max_examples=100, deadline=None)
def test_splitting_blanks_off_names_loses_nothing(text: str) -> None:
    tokenizer = Tokenizer.from_str(PHRASES.to_str())
    split_blanks_before_names(tokenizer)
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_splitting_twice_is_splitting_once_and_texts_of_known_words_keep_their_tokens() -> None:
    tokenizer = Tokenizer.from_str(PHRASES.to_str())
    split_blanks_before_names(tokenizer)
    once = tokenizer.to_str()
    split_blanks_before_names(tokenizer)
    assert tokenizer.to_str() == once
    assert tokenizer.encode("Keep it short.").ids == PHRASES.encode("Keep it short.").ids


ASKED = ["Sort whichever row comes twice", "Sort whichever is cheapest", "Sort it, whichever"]


def test_words_that_most_texts_have_get_tokens_and_ids_and_other_texts_stay() -> None:
    made = with_more_words(PHRASES, ASKED, 1)
    assert tokens_of(made, "Take whichever") == [*tokens_of(PHRASES, "Take"), " whichever"]
    assert len(tokens_of(PHRASES, " whichever")) > 2
    old, new = PHRASES.get_vocab(), made.get_vocab()
    assert {token: new[token] for token in old} == old and sorted(new.values()) == list(range(len(new)))
    for text in (*CORPUS, "def cheapest(twice):", "whicheverone"):
        assert made.encode(text).ids == PHRASES.encode(text).ids, text


def test_a_word_that_starts_another_and_one_that_is_there_cost_no_second_token() -> None:
    texts = ["the cheap, the cheapest, the cheaper nat"]
    made = with_more_words(PHRASES, texts, 4)
    assert [tokens_of(made, word) for word in (" cheap", " cheapest", " cheaper")] == [
        [" cheap"],
        [" cheapest"],
        [" cheaper"],
    ]
    assert with_more_words(made, texts, 4).to_str() == made.to_str()
    assert with_more_words(PHRASES, texts, 0).to_str() == PHRASES.to_str()


def test_names_stay_apart_beside_more_words() -> None:
    tokenizer = Tokenizer.from_str(PHRASES.to_str())
    split_blanks_before_names(tokenizer)
    made = with_more_words(tokenizer, ASKED, 1)
    assert tokens_of(made, " whichever mitten") == [" whichever", " ", *tokens_of(made, "mitten")]
    assert " whichever" not in tokens_of(made, "def whichever_mitten")


def plain_bpe() -> Tokenizer:
    """As GPT-2's and public MiniMind's: words are cut by the byte-level step."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=260, initial_alphabet=alphabet, special_tokens=["<end>"], show_progress=False
    )
    tokenizer.train_from_iterator(["in the inn"], trainer)
    return tokenizer


def test_a_tokenizer_of_another_kind_gets_words_and_keeps_its_names() -> None:
    plain = plain_bpe()
    made = with_more_words(plain, ASKED, 1)
    assert tokens_of(made, "Sort whichever<end>") == [*tokens_of(plain, "Sort"), " whichever", "<end>"]
    with pytest.raises(DataError, match="does not cut texts into lines"):
        split_blanks_before_names(plain)


def test_words_do_not_move_the_ids_of_tokens_that_were_added_later() -> None:
    plain = plain_bpe()
    plain.add_tokens(["<think>"])
    with pytest.raises(DataError, match="whose ids would change"):
        with_more_words(plain, ASKED, 1)


@given(st.one_of(st.text(), code_like, mixtures, st.sampled_from(ASKED)))
@settings(max_examples=100, deadline=None)
def test_more_words_lose_nothing(text: str) -> None:
    made = with_more_words(PHRASES, ASKED, 9)
    assert made.decode(made.encode(text).ids, skip_special_tokens=False) == text


def test_a_digit_is_never_folded_into_a_phrase() -> None:
    tokenizer = train_phrase_bpe(["version two: 2\n"] * 20)
    assert tokens_of(tokenizer, "version two: 2\n") == ["version two: ", "2", "\n"]


def test_document_share_counts_documents_and_not_occurrences() -> None:
    shouting = ["alpha beta " * 500] + [f"{name} alpha, beta" for name in NAMES]
    tokenizer = train_phrase_bpe(shouting, min_document_share=0.12)
    assert tokens_of(tokenizer, "alpha beta") == ["alpha", " beta"]


def test_with_kinds_a_phrase_is_common_to_most_documents_of_one_kind() -> None:
    texts = ["alpha beta"] * 2 + ["alpha beta, gamma delta"] * 2 + ["one two"] * 16
    kinds = ["rare"] * 4 + ["common"] * 16
    apart = train_phrase_bpe(texts, kinds=kinds, min_document_share=0.6)
    assert tokens_of(apart, "alpha beta") == ["alpha beta"]
    assert "gamma delta" not in tokens_of(apart, "gamma delta")
    together = train_phrase_bpe(texts, min_document_share=0.6)
    assert "alpha beta" not in tokens_of(together, "alpha beta")
    assert tokens_of(apart, "one two") == tokens_of(together, "one two") == ["one two"]


lines = st.lists(st.sampled_from("abc"), min_size=1, max_size=7).map(tuple)


@given(st.lists(st.sets(lines, min_size=1, max_size=4), min_size=1, max_size=5))
@settings(max_examples=100, deadline=None)
def test_shares_after_merges_are_those_counted_anew(documents: list[set[tuple[str, ...]]]) -> None:
    kinds = ["even", "odd", "even", "odd", "even"][: len(documents)]
    rounds = [{("a", "b"): "ab"}, {("ab", "ab"): "abab", ("c", "a"): "ca"}]
    pairs = _Pairs(documents, kinds)
    for chosen in rounds:
        pairs.merge(chosen)
    merged = [{tuple(reduce(_merge, rounds, list(line))) for line in document} for document in documents]
    assert pairs.shares(0.0) == _Pairs(merged, kinds).shares(0.0)


def test_no_phrase_reaches_over_a_line_break_real_or_escaped() -> None:
    tokenizer = train_phrase_bpe(["one two\n  three four\\n  five six"] * 10)
    assert tokens_of(tokenizer, "one two\n  three four\\n  five six") == ["one two\n  ", "three four\\n  ", "five six"]


def test_an_escaped_backslash_before_an_n_is_no_line_break() -> None:
    assert tokens_of(PHRASES, "\\\\nat")[0] == "\\\\"
    assert tokens_of(PHRASES, "\\nfrom")[0] == "\\n"


def test_special_tokens_have_the_first_ids_and_tags_survive_decoding() -> None:
    text = "<|endoftext|><|im_start|><|im_end|><tool_call></tool_call><tool_response></tool_response>"
    assert PHRASES.encode(text).ids == [0, 1, 2, 3, 4, 5, 6]
    assert PHRASES.decode([0, 1, 2, 3, 4, 5, 6]) == "<tool_call></tool_call><tool_response></tool_response>"


def test_the_vocabulary_keeps_to_both_bounds() -> None:
    small = train_phrase_bpe(CORPUS, word_vocab_size=300, max_vocab_size=320)
    assert small.get_vocab_size() == 320
    assert train_phrase_bpe(CORPUS, word_vocab_size=300, min_document_share=1.1).get_vocab_size() <= 300


def test_training_twice_gives_the_same_tokenizer_and_the_file_loads_anywhere(tmp_path) -> None:
    assert train_phrase_bpe(CORPUS).to_str() == PHRASES.to_str()
    as_pretrained(PHRASES).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(CORPUS[0], add_special_tokens=False).input_ids == PHRASES.encode(CORPUS[0]).ids
    assert (loaded.pad_token_id, loaded.eos_token_id) == (0, 2)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(CORPUS[1]).ids == PHRASES.encode(CORPUS[1]).ids


def test_long_runs_without_a_line_break_are_encoded() -> None:
    for text in ("a b" * 100_000, "\\" * 100_001, " " * 100_000):
        assert PHRASES.decode(PHRASES.encode(text).ids) == text


def test_no_texts_is_a_users_mistake() -> None:
    with pytest.raises(DataError, match="at least one document"):
        train_phrase_bpe([])


def test_the_chat_template_renders_tools_calls_and_folded_results() -> None:
    tool = {"type": "function", "function": {"name": "add", "description": "é", "parameters": {"type": "object"}}}
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": "ü\n"}}}
    text = as_pretrained(PHRASES).apply_chat_template(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Go"},
            {"role": "assistant", "content": "Sure.", "tool_calls": [call, call]},
            {"role": "tool", "content": "3"},
            {"role": "tool", "content": "4"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "user", "content": "Thanks"},
        ],
        tools=[tool],
        add_generation_prompt=True,
        tokenize=False,
    )
    rendered_call = '<tool_call>\n{"name": "add", "arguments": {"a": "ü\\n"}}\n</tool_call>'
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n\n")
    assert f"<tools>\n{json.dumps(tool, ensure_ascii=False)}\n</tools>\n\n" in text
    assert text[text.index("<|im_end|>") :] == (
        "<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n"
        f"<|im_start|>assistant\nSure.\n{rendered_call}\n{rendered_call}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response><|im_end|>\n"
        f"<|im_start|>assistant\n{rendered_call}<|im_end|>\n"
        "<|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_result_does_not_depend_on_the_order_python_hashes_strings_in() -> None:
    program = (
        "from agent_rl.agent.phrase_bpe import train_phrase_bpe\n"
        "print(train_phrase_bpe(['alpha beta gamma delta epsilon zeta eta theta'] * 4).to_str())"
    )
    results = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=400,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(results) == 1
