r"""A byte-level BPE for one domain: whole words first, then whole phrases, in one ordinary `tokenizers` BPE model.

A from-scratch model of a few million parameters needs short sequences (boilerplate folded into few tokens) and
names it can copy (a package name, a unit, a digit is the same token wherever it stands). So merges are chosen in
two stages. Stage 1 is the usual BPE inside word pieces. Stage 2 joins neighbouring tokens found together in at
least `min_document_share` of the documents, or of those of one kind: what most documents share becomes one token, what
one task alone has stays apart.

Why one merge list is enough. Encoding cuts a text into *lines* (`_LINE`), not words, and applies all merges by rank.
Stage-1 merges still cannot join two words: no stage-1 merge spans two pieces of `_WORD`, by the characters at the
seam, save for two seams that need care. The letter of an escape (`\n` before `from` inside JSON) would be taken by
letter merges, so escapes are merged before everything else; a space that ends an indentation would be taken by the
next word, so `_LINE` cuts there. Phrases, which come last, never reach over a line break for the same reason.

This module knows no model and no task; turning messages into ids is `chat_format.py`.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from agent_rl.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL_TOKENS = (PAD, TURN_START, TURN_END)
"""Ids 0, 1, 2. Dropped by `decode(..., skip_special_tokens=True)`."""
TAG_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Ids 3 to 6. One token each, but text: they always decode back, since calls are parsed from text."""

TOOLS_HEADER = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_FOOTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)

_TEMPLATE = files("agent_rl.agent").joinpath("phrase_chat.jinja").read_text(encoding="utf-8")
CHAT_TEMPLATE = (
    "".join(line.strip() for line in _TEMPLATE.splitlines())
    .replace("TOOLS_HEADER", json.dumps(TOOLS_HEADER))
    .replace("TOOLS_FOOTER", json.dumps(TOOLS_FOOTER))
)
"""ChatML with Hermes tool calls, the dialect of Qwen2.5."""

_ESCAPES = '\\"nrtbfu'
"""Second characters of JSON escapes. The backslash comes first, so that `\\\\n` is an escaped backslash and an n."""
_LINE_END = r"(?:\\n)++ *+|\n++ *+|  ++"
_LINE = rf'(?:[^\\\n ]++|\\["\\rtbfu]|\\(?!n)| (?! ))++(?:{_LINE_END})?|{_LINE_END}'
_WORD = (
    r"(?:\\n)+ *|\n+ *|  +"  # a line break, real or escaped, with the indentation after it; a gap
    r'|\\["\\rtbfu]'
    r"|[_ ]?[A-Za-z]+"
    r"|[0-9]"
    r"| ?[^A-Za-z0-9_ \t\r\n\f\v\\]+"  # operators, punctuation, everything outside ASCII
    r"|[_ \t\r\f\v\\]"
)
_BLANK_OF_NAME = " (?=[A-Za-z])"
_WORD_AFTER_BLANK = re.compile(r" [A-Za-z]+(?!\w)")
_MERGES_PER_ROUND = 24


def train_phrase_bpe(
    texts: Sequence[str],
    *,
    kinds: Sequence[str] = (),
    word_vocab_size: int = 2048,
    max_vocab_size: int = 4096,
    min_document_share: float = 0.12,
    phrase_documents: int = 500,
) -> Tokenizer:
    """Train on whole documents (rendered conversations, special tokens included); the same texts give the same result.

    `word_vocab_size` bounds special tokens, the 256 bytes and stage-1 merges together; `max_vocab_size` bounds it all.
    Stage 2 counts on the first `phrase_documents` texts, for every kind apart where `kinds` names that of each text.
    A phrase never holds a digit, so that numbers stay copyable.
    `decode(encode(text).ids, skip_special_tokens=False) == text` for every string. Raises DataError without texts.
    """
    if not texts:
        raise DataError("the tokenizer got no texts to train on; pass at least one document")
    merges = _word_merges(texts, word_vocab_size)
    tokenizer = _build(merges)
    budget = max_vocab_size - tokenizer.get_vocab_size()
    documents = _lines_of_documents(tokenizer, texts[:phrase_documents])
    kinds = list(kinds[:phrase_documents]) or [""] * len(documents)
    merges += _phrase_merges(documents, kinds, budget=budget, min_document_share=min_document_share)
    return _build(merges)


def as_pretrained(tokenizer: Tokenizer) -> "PreTrainedTokenizerFast":
    """Wrap for `transformers`, to save beside a model: pad `<|endoftext|>`, eos `<|im_end|>`, `CHAT_TEMPLATE`."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=TURN_END,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def split_blanks_before_names(tokenizer: Tokenizer) -> None:
    """Cut off the blank before every name and word that is not whole in a token of `tokenizer`, in place.

    Otherwise a name that was never seen is `mit|ten` after a quote and ` m|it|ten` after a blank, and who copies it has
    to know how both are spelled. Costs a token for each such word; ids, and texts of known words, stay as they are.
    DataError for a tokenizer that `train_phrase_bpe` did not make.
    """
    steps = _steps(json.loads(tokenizer.to_str()))
    if any(map(_splits_blanks, steps)):
        return
    if [step["type"] for step in steps] != ["Split", "ByteLevel"]:
        raise DataError("the tokenizer does not cut texts into lines, as those that are trained here do")
    texts = [tokenizer.decode([token], skip_special_tokens=False) for token in range(tokenizer.get_vocab_size())]
    known = sorted({word for text in texts for word in re.findall(r" ([A-Za-z]\w*)(?!\w)", text)})
    blank = pre_tokenizers.Split(Regex(rf"{_BLANK_OF_NAME}(?!(?:{'|'.join(known)})(?!\w))"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer[0], blank, tokenizer.pre_tokenizer[1]])


def _steps(state: dict[str, Any]) -> list[dict[str, Any]]:
    """What a tokenizer does to a text before merges; [] where that is no sequence."""
    return (state["pre_tokenizer"] or {}).get("pretokenizers", [])


def _splits_blanks(step: dict[str, Any]) -> bool:
    return step["type"] == "Split" and step["pattern"]["Regex"].startswith(_BLANK_OF_NAME)


def with_more_words(tokenizer: Tokenizer, texts: Sequence[str], num_words: int) -> Tokenizer:
    """The tokenizer with a token more for each of the words after a blank that most of the `texts` have and that it
    cuts into several, `num_words` at most, and for the parts that lead to them.

    Ids stay, and so do the tokens of a text without these words. The new merges come after all others. DataError where
    added tokens have ids after those of the BPE.
    """
    counts = Counter(word for text in texts for word in {*_WORD_AFTER_BLANK.findall(text)})
    state = json.loads(tokenizer.to_str())
    vocab, merges = state["model"]["vocab"], {tuple(pair): None for pair in state["model"]["merges"]}
    if len(vocab) < tokenizer.get_vocab_size():
        raise DataError("the tokenizer has added tokens after its own, whose ids would change")
    cut = {word: pieces for word in counts if len(pieces := _pieces(tokenizer.model, word)) > 1}
    ranked = sorted(cut, key=lambda word: (-counts[word], word))
    for word in ranked[:num_words]:
        whole, *others = cut[word]
        for piece in others:
            merges.setdefault((whole, piece))
            whole += piece
            vocab.setdefault(whole, len(vocab))
    state["model"]["merges"] = [list(pair) for pair in merges]
    steps = _steps(state)
    splits = [step for step in steps if _splits_blanks(step)]  # by the words that were known
    for step in splits:
        steps.remove(step)
    made = Tokenizer.from_str(json.dumps(state))
    if splits:
        split_blanks_before_names(made)
    return made


def _pieces(bpe: models.BPE, word: str) -> list[str]:
    """Of a blank and ASCII letters, of which the blank alone is another character among a byte-level BPE's."""
    return [token.value for token in bpe.tokenize(word.replace(" ", "\u0120"))]


Pair = tuple[str, str]


def _build(merges: Sequence[Pair]) -> Tokenizer:
    """An encoder with these merges, by rank, inside lines. Ids: special tokens, the 256 bytes, merges in order."""
    tokens = [*CONTROL_TOKENS, *TAG_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [left + right for left, right in merges]
    # Two merges may make one string (`a b` + `c`, `a` + `b c`): it is one token with one id.
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    tokenizer.pre_tokenizer = _split_then_bytes(_LINE)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in TAG_TOKENS])
    return tokenizer


def _split_then_bytes(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _word_merges(texts: Iterable[str], vocab_size: int) -> list[Pair]:
    """Stage 1: ordinary BPE inside word pieces. Escapes, which start their pieces, move to the front unharmed."""
    escapes = [("\\", character) for character in _ESCAPES]
    trainee = Tokenizer(models.BPE())
    trainee.pre_tokenizer = _split_then_bytes(_WORD)
    trainer = trainers.BpeTrainer(
        vocab_size=max(0, vocab_size - len(CONTROL_TOKENS) - len(TAG_TOKENS) - len(escapes)),
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trainee.train_from_iterator((chunk for text in texts for chunk in _between_special_tokens(text)), trainer)
    learned = [(left, right) for left, right in json.loads(trainee.to_str())["model"]["merges"]]
    return escapes + [pair for pair in learned if pair not in escapes]


_SPECIAL = re.compile("|".join(map(re.escape, (*CONTROL_TOKENS, *TAG_TOKENS))))


def _between_special_tokens(text: str) -> Iterator[str]:
    return filter(None, _SPECIAL.split(text))


def _lines_of_documents(tokenizer: Tokenizer, texts: Sequence[str]) -> list[set[tuple[str, ...]]]:
    """Every document as the set of its distinct lines, a line as its stage-1 tokens (documents share most lines)."""
    cache: dict[str, tuple[str, ...]] = {}
    documents = []
    for text in texts:
        lines = {
            line
            for chunk in _between_special_tokens(text)
            for line, _ in tokenizer.pre_tokenizer.pre_tokenize_str(chunk)
        }
        for line in lines - cache.keys():
            cache[line] = tuple(token.value for token in tokenizer.model.tokenize(line))
        documents.append({cache[line] for line in lines})
    return documents


def _phrase_merges(
    documents: list[set[tuple[str, ...]]], kinds: Sequence[str], *, budget: int, min_document_share: float
) -> list[Pair]:
    """Stage 2: rounds of merges, most widespread first, at most one merge per token and round.

    Within a round no token is part of two merges, so applying them at once is what BPE does one rank after the other.
    """
    pairs = _Pairs(documents, kinds)
    merges: list[Pair] = []
    while budget > 0:
        shares = pairs.shares(min_document_share)
        chosen: dict[Pair, str] = {}
        taken: set[str] = set()
        for pair in sorted(shares, key=lambda pair: (-shares[pair], pair)):
            if len(chosen) == min(_MERGES_PER_ROUND, budget):
                break
            if taken.isdisjoint(pair) and not _has_digit(pair):
                chosen[pair] = pair[0] + pair[1]
                taken.update(pair)
        if not chosen:
            break
        merges += chosen
        budget -= len(chosen)
        pairs.merge(chosen)
    return merges


class _Pairs:
    """Which documents have which pairs of neighbouring tokens; a round of merges changes what it touches alone."""

    def __init__(self, documents: list[set[tuple[str, ...]]], kinds: Sequence[str]) -> None:
        self._kinds = kinds
        self._tokens = {line: list(line) for document in documents for line in document}
        self._documents_of: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for number, document in enumerate(documents):
            for line in document:
                self._documents_of[line].append(number)
        # A line that had a pair stays listed: joining what it no longer has changes nothing.
        self._lines_with: defaultdict[Pair, set[tuple[str, ...]]] = defaultdict(set)
        self._lines_in_document: list[Counter[Pair]] = [Counter() for _ in documents]
        self._documents_of_kind: dict[str, Counter[Pair]] = {kind: Counter() for kind in kinds}
        for line in self._tokens:
            self._count(line, set(pairwise(line)), 1)
            for pair in pairwise(line):
                self._lines_with[pair].add(line)

    def shares(self, at_least: float) -> dict[Pair, float]:
        """Of every pair its share of the documents of the kind that has it most often, where that is large enough."""
        shares: dict[Pair, float] = {}
        for kind, num_documents in Counter(self._kinds).items():
            for pair, count in self._documents_of_kind[kind].items():
                if count and (share := count / num_documents) >= at_least:
                    shares[pair] = max(shares.get(pair, 0.0), share)
        return shares

    def merge(self, chosen: dict[Pair, str]) -> None:
        """Join the chosen pairs wherever they stand."""
        for line in set().union(*(self._lines_with[pair] for pair in chosen)):
            before = set(pairwise(self._tokens[line]))
            self._tokens[line] = _merge(self._tokens[line], chosen)
            after = set(pairwise(self._tokens[line]))
            self._count(line, after - before, 1)
            self._count(line, before - after, -1)
            for pair in after - before:
                self._lines_with[pair].add(line)

    def _count(self, line: tuple[str, ...], pairs: set[Pair], change: int) -> None:
        for pair in pairs:
            for number in self._documents_of[line]:
                lines = self._lines_in_document[number]
                was_there = lines[pair] > 0
                lines[pair] += change
                self._documents_of_kind[self._kinds[number]][pair] += (lines[pair] > 0) - was_there


def _has_digit(pair: Pair) -> bool:
    return any(character in "0123456789" for token in pair for character in token)


def _merge(tokens: list[str], chosen: dict[Pair, str]) -> list[str]:
    """Join chosen pairs from left to right: `_merge(["a", "a", "a"], {("a", "a"): "aa"}) == ["aa", "a"]`."""
    merged: list[str] = []
    position = 0
    while position < len(tokens):
        phrase = chosen.get((tokens[position], tokens[position + 1])) if position + 1 < len(tokens) else None
        merged.append(phrase or tokens[position])
        position += 2 if phrase else 1
    return merged
