"""The text of every single token, such that the texts in a row read as the whole does: for people to look at.

Not here: encoding, and decoding what a program reads on (`segments.py`).
"""

from collections.abc import Callable, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What decoders write for bytes that are no character."""
MAX_PIECES = 4
"""Bytes of the longest character in UTF-8, so the most tokens that one can be spread over."""


def token_texts(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """One text per id; joined they are the decoded whole.

    A character spread over several tokens stands on the last of them, the others have the empty text. Bytes that
    become no character are U+FFFD each.
    """
    # Some decoders strip the space in front of the first token, so that each is decoded behind another one.
    first = next((token for token in ids if _is_whole(decode([token]))), None)
    before = [] if first is None else [first]
    num_before = len(decode(before))
    known: dict[int, str] = {}

    def text_of(token: int) -> str:
        if token not in known:
            known[token] = decode([*before, token])[num_before:]
        return known[token]

    texts: list[str] = []
    while len(texts) < len(ids):
        start = len(texts)
        text, num_pieces = text_of(ids[start]), 1
        if REPLACEMENT in text:
            for end in range(start + 2, min(start + MAX_PIECES, len(ids)) + 1):
                joined = decode([*before, *ids[start:end]])[num_before:]
                if _is_whole(joined):
                    text, num_pieces = joined, end - start
                    break
        texts += [""] * (num_pieces - 1) + [text]
    return texts


def _is_whole(text: str) -> bool:
    return bool(text) and REPLACEMENT not in text
