"""The text of every single token, such that the texts in a row read as the whole does: for people to look at.

Not here: encoding, and decoding what a program reads on (`segments.py`).
"""

from collections.abc import Callable, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What decoders write for bytes that are no character; a text may also hold it as a character of its own."""
MAX_PIECES = 4
"""Bytes of the longest character in UTF-8, so the most tokens that one can be spread over."""


def token_texts(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """One text per id; joined they are the decoded whole, where `decode` goes through the bytes from left to right.

    A character spread over several tokens stands on the last of them, the others have the empty text; so have ids
    without a text, as those outside the vocabulary. Bytes that become no character are U+FFFD. A decoder that rejects
    a whole row of bytes because of one bad byte may write more U+FFFD than are returned here.
    """
    # Some decoders strip the space in front of the first token, so that each is decoded behind another one.
    first = next((token for token in ids if _is_whole(decode([token]))), None)
    before = [] if first is None else [first]
    num_before = len(decode(before))
    known: dict[int, str] = {}

    def decoded(start: int, end: int) -> str:
        return decode([*before, *ids[start:end]])[num_before:]

    texts: list[str] = []
    while len(texts) < len(ids):
        start = len(texts)
        if ids[start] not in known:
            known[ids[start]] = decoded(start, start + 1)
        text, num_pieces = known[ids[start]], 1
        if REPLACEMENT in text:
            num_pieces = _num_pieces(decoded, start, len(ids))
            text = decoded(start, start + num_pieces)
        texts += [""] * (num_pieces - 1) + [text]
    return texts


def _num_pieces(decoded: Callable[[int, int], str], start: int, end: int) -> int:
    """How many tokens from `start` on have a text together: the fewest without U+FFFD, else up to where a text ends.

    A text ends where what stands before and behind reads alone as it does together: not within a character.
    """
    for num in range(2, min(MAX_PIECES, end - start) + 1):
        if _is_whole(decoded(start, start + num)):
            return num
    middle = start + 1
    while True:
        beyond = min(middle + MAX_PIECES - 1, end)
        if decoded(start, middle) + decoded(middle, beyond) == decoded(start, beyond):
            return middle - start
        middle += 1


def _is_whole(text: str) -> bool:
    return bool(text) and REPLACEMENT not in text
