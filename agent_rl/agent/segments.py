"""Stretches of text to token ids, markup apart from plain text, and ids back to text.

Special tokens count in markup alone: plain text is encoded by a private copy of the tokenizer that has none. Stretches
between special tokens are encoded one by one, as the tokenizer itself does, and may follow what is already encoded.
This module knows neither messages nor templates.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from agent_rl.errors import CheckpointError


class TextSegment(NamedTuple):
    """A stretch of a rendered conversation."""

    text: str
    is_markup: bool
    """Comes from the template or from us: special tokens in it count. Otherwise they are plain text."""


class SegmentEncoder:
    """The ids of segments. Safe to call from many threads."""

    def __init__(self, backend: Tokenizer, added_ids: dict[str, int]) -> None:
        self.added_ids = added_ids
        by_length = sorted(added_ids, key=len, reverse=True)
        self.added = re.compile("|".join(map(re.escape, by_length)) or "(?!)")
        """Finds the next token that is not of the model's own vocabulary, such as `<|im_end|>`."""
        # Private copies that are never changed, so any number of threads may use them: some releases of `tokenizers`
        # raise "Already borrowed" when one thread encodes while another sets padding on the same object.
        source = backend.to_str()
        self._backend = Tokenizer.from_str(source)
        state: dict[str, Any] = json.loads(source)
        state.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
        behind_token, behind_text = _changed(state, _without_start), _changed(state, _without_prefix)
        self._behind_token = Tokenizer.from_str(json.dumps(behind_token))
        """For stretches behind a special token. For it and the next, every text is plain text."""
        is_same = behind_text == behind_token
        self._behind_text = self._behind_token if is_same else Tokenizer.from_str(json.dumps(behind_text))
        """For stretches that continue where others ended."""

    def encode(self, segments: Iterable[TextSegment], *, behind_text: bool = False) -> list[int]:
        """Ids of segments. Neighbouring plain text is encoded in one go, as the tokenizer itself would.

        `behind_text`: what the ids are appended to ends in text and not in a special token, so a tokenizer that starts
        each stretch with a space must not do so here. Half of a surrogate pair becomes `?`.
        """
        ids: list[int] = []
        plain = ""
        tokenizer = self._behind_text if behind_text else self._behind_token
        for segment in segments:
            position = 0
            for match in self.added.finditer(segment.text) if segment.is_markup else ():
                plain += segment.text[position : match.start()]
                ids += _encode_plain(tokenizer, plain)
                ids.append(self.added_ids[match.group()])
                plain, position, tokenizer = "", match.end(), self._behind_token
            plain += segment.text[position:]
        return ids + _encode_plain(tokenizer, plain)

    def ends_in_text(self, markup: str) -> bool:
        """Whether the last thing in `markup` is something else than a special token."""
        last = 0
        for match in self.added.finditer(markup):
            last = match.end()
        return last < len(markup)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def token_in_plain_text(self) -> str | None:
        """A special token that plain text could become, which would make text and markup indistinguishable."""
        for token, added in self._backend.get_added_tokens_decoder().items():
            if added.special and token in _encode_plain(self._behind_token, added.content):
                return added.content
        return None


def _encode_plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text; CheckpointError when the tokenizer has none for it."""
    if not text:
        return []
    # Undecodable bytes in a tool's output may arrive as lone surrogates, which no tokenizer takes.
    clean = text.encode(errors="replace").decode()
    try:
        return tokenizer.encode(clean, add_special_tokens=False).ids
    except BaseException as error:  # the library raises plain Exception, or a panic that is none
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(
            f"the tokenizer cannot encode {clean[:40]!r} ({str(error)[:200]}); take tokenizer.json from its source"
        ) from error


def _changed(state: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """A tokenizer's state with each step before its model run through `change`."""
    changed = dict(state)
    for key, parts in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        step = state[key]
        if step is not None and step["type"] == "Sequence":
            changed[key] = {**step, parts: [change(part) for part in step[parts]]}
        elif step is not None:
            changed[key] = change(step)
    return changed


def _without_start(step: dict[str, Any]) -> dict[str, Any]:
    """A conversation starts with a special token, so no stretch of it is the start of the text."""
    return {**step, "prepend_scheme": "never"} if step.get("prepend_scheme") == "first" else step


def _without_prefix(step: dict[str, Any]) -> dict[str, Any]:
    if step["type"] == "Metaspace":
        return {**step, "prepend_scheme": "never"}
    if step.get("add_prefix_space"):
        return {**step, "add_prefix_space": False}
    if step["type"] == "Prepend":
        return {**step, "prepend": ""}
    return step
