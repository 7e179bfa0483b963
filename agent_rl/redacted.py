"""Text and settings without what may be secret: for pages, trackers, messages, and for what a model reads.

`redacted` hides by the place of a value in settings, `Secrets` by the value wherever it turns up. Not here: the
settings of a run (`config.yaml`), which hold everything and which only their owner can read.
"""

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

HIDDEN = "(not shown)"
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*://)(?:[^/\s?#@]*@)?(?P<place>[^\s?#]*)(?P<rest>[?#]\S*)?")
_PRIVATE = ("default_params",)
"""Keys whose values are parameters of requests; their names are shown."""
_SECRET_NAME = re.compile(
    r"(?i)(.*[-_.])?(api[-_]?key|access[-_]?key|key|auth|authorization|bearer|cookie|credentials?|pass|passwd|password|pat"
    r"|pwd|secret|sig|signature|token)"
)
_MIN_CHARS = 4
"""Shorter values are hidden nowhere: they turn up in every text."""
_LOOKS_DRAWN = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z])\S{16,}")


def redacted(value: Any) -> Any:
    """`{"url": "https://me:pw@host/mcp?key=1"}` as `{"url": "https://host/mcp?(not shown)"}`; the rest as it is.

    Hidden are users, parameters and fragments of addresses, parameters of requests, texts under a name such as
    `password` or `api_key`, and in lists (commands) what follows `--token` or `API_KEY=`.
    """
    if isinstance(value, Mapping):
        return {key: _of_key(str(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        before = (None, *value)
        return [_of_argument(previous, each) for previous, each in zip(before, value, strict=False)]
    return _ADDRESS.sub(_shown, value) if isinstance(value, str) else value


def _of_key(key: str, value: Any) -> Any:
    if key.endswith(_PRIVATE):
        return dict.fromkeys(value, HIDDEN) if isinstance(value, Mapping) else HIDDEN
    return _without_texts(value) if is_secret_name(key) else redacted(value)


def _without_texts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_texts(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_texts(each) for each in value]
    return HIDDEN if isinstance(value, str) and value else value


def _of_argument(previous: Any, value: Any) -> Any:
    if not isinstance(value, str):
        return redacted(value)
    option = previous.lstrip("-") if isinstance(previous, str) and previous.startswith("-") else ""
    if is_secret_name(option) and not value.startswith("-"):
        return HIDDEN
    name, found, _ = value.partition("=")
    if found and is_secret_name(name.lstrip("-")):
        return f"{name}={HIDDEN}"
    return redacted(value)


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is a secret: `api_key`, `--hf-token`, `GITHUB_PAT`."""
    return _SECRET_NAME.fullmatch(name) is not None


def _shown(found: re.Match[str]) -> str:
    return f"{found['scheme']}{found['place']}{'?' + HIDDEN if found['rest'] else ''}"


class Secrets:
    """Values that no text may repeat: `Secrets(["sk-1234"]).hide("you sent sk-1234")` is `you sent [key]`.

    Their usual spellings are hidden too: percent-encoded, base64, as in JSON and HTML, in either case.
    """

    def __init__(self, values: Iterable[str]) -> None:
        spellings = {form for value in values if len(value) >= _MIN_CHARS for form in _spellings(value)}
        longest_first = sorted(spellings, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE) if spellings else None

    def hide(self, text: str) -> str:
        return self._pattern.sub("[key]", text) if self._pattern else text


def secrets_of_address(address: str) -> list[str]:
    """Password, user and secret parameters of an address."""
    parts = urlsplit(address)
    found = [unquote(part) for part in (parts.password, parts.username) if part]
    return [*found, *secret_values(dict(parse_qsl(parts.query)) | dict(parse_qsl(parts.fragment)))]


def secret_values(values: Mapping[str, Any]) -> list[str]:
    """Of parameters, those that are secret by their name or look drawn at random; also in lists and mappings."""
    found: list[str] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += secret_values(value)
        for text in value if isinstance(value, list | tuple) else [value]:
            if isinstance(text, str) and (is_secret_name(name) or _LOOKS_DRAWN.fullmatch(text)):
                found.append(text)
    return found


def _spellings(value: str) -> set[str]:
    raw = value.encode("utf-8", "surrogatepass")
    forms = {value, quote(value, safe=""), quote(value), quote_plus(value), html.escape(value), value[::-1]}
    forms |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], raw.hex()}
    for shift in range(3):  # within a longer text, such as "user:key", base64 begins anywhere in a group of three
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(bytes(shift) + raw).decode().rstrip("=")
            form = text[-(-shift * 8 // 6) : len(text) - (1 if (shift + len(raw)) % 3 else 0)]
            if len(form) >= _MIN_CHARS + 2:
                forms.add(form)
    return {form for form in forms if len(form) >= _MIN_CHARS}
