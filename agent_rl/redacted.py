"""Text and settings without what may be secret: for pages, trackers, messages, and for what a model reads.

The one door for settings, commands and addresses that anybody sees is `redacted`, or `shown` where a text is wanted: it
hides by the place of a value. `Secrets` hides by the value wherever it turns up, and `secrets_in` gives it the values
that the door hides. Not here: the settings of a run (`config.yaml`), which hold everything and which only their owner
can read.
"""

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

HIDDEN = "(not shown)"
_ADDRESS = re.compile(
    r"(?<![\w+.-])(?P<scheme>[\w+.-]+://)(?P<user>\S*@)?(?P<place>[^\s?#]*)(?P<rest>[?#](?:\(not shown\)|\S*))?"
)
_PRIVATE = ("default_params", "headers", "cookies")
"""Keys whose values are parameters of requests; their names are shown."""
_ENVIRONMENT = ("env", "environ", "environment")
"""Keys that may hold variables of a process: those are told by their names."""
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_SECRET_NAME = re.compile(
    r"(?i)(.*[-_. ])?(api[-_]?key|access[-_]?key|key|auth|authorization|bearer|cookie|credentials?|pass|passwd|password"
    r"|notify|pat|pwd|secret|sig|signature|token|jwt|webhook)"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SHORT_OPTIONS = ("k", "K", "H")
"""Short options whose values are hidden: keys and headers."""
_HEADER_OPTIONS = ("H", "header", "headers")
_MIN_CHARS = 4
"""Shorter values are hidden nowhere: they turn up in every text."""
_LOOKS_DRAWN = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z])\S{16,}")
_KEY_PREFIX = re.compile(
    r"(?=.*[0-9A-Z])(sk|pk|rk|ghp|gho|ghs|github_pat|glpat|hf|xox[a-z]|tvly|AKIA|AIza|eyJ|whsec)(?:[-_]|(?<=[AJa]))"
    r"[\w.+/=~-]{6,}"
)
_DRAWN_RUN = re.compile(r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{20,}={0,2}|[0-9a-fA-F]{32,}")
_FILE_NAME = re.compile(r"[^/]*\.[A-Za-z]\w{0,9}")
_EVERYDAY_NAMES = ("key", "auth", "pass", "pat", "sig", "signature")
"""Names of columns too, as in `[key, value]`."""
_LARGE_NUMBER = 100_000
"""Smaller numbers are ids of tokens, and how many."""
_VALUE = r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s;&,]+)"
_ASSIGNED = re.compile(rf"(?<![\w.-])(?P<name>[\w.-]+)=(?!\s){_VALUE}")
_IN_JSON = re.compile(r"(?P<mark>[\"'])(?P<name>[\w. -]+)(?P=mark)\s*:\s*(?P<value>\"[^\"]*\"|'[^']*')")
_BEARER = re.compile(r"(?i)(?<!\w)bearer\s+(?P<value>[^\s\"',;]+)")
_HEADER = re.compile(r"(?P<name>[\w-]+)\s*:\s*(?P<value>\S.*)", re.DOTALL)
_OPTION = re.compile(r"(?<!\S)--?(?P<name>[\w-]+)[ =:]+(?P<value>[^\s-]\S*)")
_LOGIN = re.compile(r"(?<!\S)(?P<value>[^\s:@/=]+:[^\s@]+)@(?=\w)")


def redacted(value: Any) -> Any:
    """`{"url": "https://me:pw@host/mcp?key=1"}` as `{"url": "https://host/mcp?(not shown)"}`; the rest as it is.

    Hidden are users, parameters, fragments and what looks like a key in addresses; parameters and headers of requests;
    texts under a name such as `password`, `apiKey` or `HF_TOKEN`, in texts too (`password=`); and in lists (commands)
    what follows `--token` or `-k`, headers, variables (`API_KEY=`), and what looks like a key.
    """
    return _Door().of(value)


def shown(value: str | Sequence[str]) -> str:
    """A command, or an address, as one text of a message; an address without a scheme too."""
    if not isinstance(value, str):
        return " ".join(map(str, redacted(list(value))))
    if "://" in value or not re.search(r"[@?#]", value):
        return str(redacted(value))
    return str(redacted(f"x://{value}")).removeprefix("x://")


def secrets_in(value: Any) -> list[str]:
    """The texts that `redacted` hides of a value, but for everyday words that are hidden by their place alone."""
    door = _Door()
    door.of(value)
    return door.secrets


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is a secret: `api_key`, `--hf-token`, `GITHUB_PAT`, `bearerToken`."""
    return _SECRET_NAME.fullmatch(name) is not None or _SECRET_NAME.fullmatch(_CAMEL.sub("_", name)) is not None


def looks_like_key(text: str) -> bool:
    """Whether a text is one that only a key would be: `ghp_...`, forty hexadecimal digits."""
    return _KEY_PREFIX.fullmatch(text) is not None or _DRAWN_RUN.fullmatch(text) is not None


class _Door:
    """One pass over a value. `secrets` are the texts that were hidden."""

    def __init__(self) -> None:
        self.secrets: list[str] = []

    def of(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._of_key(str(key), each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            is_pair = len(value) == 2 and isinstance(value[0], str) and value[0] not in _EVERYDAY_NAMES
            before = (None, *value)
            return [self._of_argument(b, each, is_pair) for b, each in zip(before, value, strict=False)]
        return self._of_text(value) if isinstance(value, str) else value

    def _hide(self, text: str, *, is_surely: bool = True) -> str:
        text = text.strip("\"'")
        if is_surely or looks_like_key(text) or _LOOKS_DRAWN.fullmatch(text):
            self.secrets.append(text)
        return HIDDEN

    def _of_key(self, key: str, value: Any) -> Any:
        if key.lower().endswith(_PRIVATE):
            self._all_of(value, is_surely=False)
            return dict.fromkeys(value, HIDDEN) if isinstance(value, Mapping) else HIDDEN
        if key in _ENVIRONMENT and isinstance(value, Mapping):
            return {
                name: self._all_of(each, is_surely=is_secret_name(str(name)))
                if _VARIABLE.fullmatch(str(name))
                else self._of_key(str(name), each)
                for name, each in value.items()
            }
        return self._all_of(value) if is_secret_name(key) else self.of(value)

    def _all_of(self, value: Any, *, is_surely: bool = True) -> Any:
        """Without any text."""
        if isinstance(value, Mapping):
            return {key: self._all_of(each, is_surely=is_surely) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._all_of(each, is_surely=is_surely) for each in value]
        if type(value) is int and abs(value) >= _LARGE_NUMBER:
            return self._hide(str(value), is_surely=is_surely)
        return self._hide(value, is_surely=is_surely) if isinstance(value, str) and value else value

    def _of_argument(self, before: Any, value: Any, is_pair: bool) -> Any:
        """One of a list, which may be a command, or a pair of a name and a value."""
        if not isinstance(value, str):
            return self.of(value)
        is_option = isinstance(before, str) and before.startswith("-")
        option = before.lstrip("-").rstrip(":=") if is_option or (is_pair and isinstance(before, str)) else ""
        if is_option and option in _HEADER_OPTIONS and (header := _HEADER.fullmatch(value)):
            self._hide(header["value"].split()[-1], is_surely=is_secret_name(header["name"]))
            return f"{header['name']}: {HIDDEN}"
        is_named = is_secret_name(option) and "=" not in option and not any(map(str.isspace, option))
        if not value.startswith("-") and (is_named or (is_option and option in _SHORT_OPTIONS)):
            return self._hide(value, is_surely=is_named) if value else value
        if looks_like_key(value):
            return self._hide(value)
        name, found, rest = value.partition("=")
        if found and name.lstrip("-") in _HEADER_OPTIONS and (header := _HEADER.fullmatch(rest)):
            self._hide(header["value"].split()[-1], is_surely=is_secret_name(header["name"]))
            return f"{name}={header['name']}: {HIDDEN}"
        if found and is_secret_name(name.lstrip("-")):
            return f"{name}={self._hide(rest) if rest else rest}"
        return self._of_text(value, is_command=True)

    def _of_text(self, text: str, *, is_command: bool = False) -> str:
        text = _ADDRESS.sub(self._of_address, text)
        text = self._replace(_BEARER, text, lambda _name: True)
        text = self._replace(_IN_JSON, text, is_secret_name)
        if not is_command:
            return self._replace(_ASSIGNED, text, is_secret_name)
        text = self._replace(_LOGIN, text, lambda _name: True)
        text = self._replace(_ASSIGNED, text, lambda name: is_secret_name(name) or bool(_VARIABLE.fullmatch(name)))
        text = self._replace(_OPTION, text, lambda name: is_secret_name(name) or name in _SHORT_OPTIONS)
        if (header := _HEADER.fullmatch(text)) and is_secret_name(header["name"]):
            return self._without(header, 0)
        return text

    def _replace(self, pattern: re.Pattern[str], text: str, is_hidden: Any) -> str:
        def hide(found: re.Match[str]) -> str:
            name = found.groupdict().get("name") or ""
            if HIDDEN.startswith(found["value"]) or not is_hidden(name):
                return found[0]
            return self._without(found, found.start(), is_surely=is_secret_name(name))

        return pattern.sub(hide, text)

    def _without(self, found: re.Match[str], start: int, *, is_surely: bool = True) -> str:
        self._hide(found["value"], is_surely=is_surely)
        return found[0][: found.start("value") - start] + HIDDEN + found[0][found.end("value") - start :]

    def _of_address(self, found: re.Match[str]) -> str:
        self.secrets += secrets_of_address(found[0])
        host, *parts = found["place"].split("/")
        path = [HIDDEN if _is_key_in_path(part) else part for part in parts]
        return f"{found['scheme']}{'/'.join([host, *path])}{'?' + HIDDEN if found['rest'] else ''}"


def _is_key_in_path(part: str) -> bool:
    text = unquote(part)
    return looks_like_key(text) or (_LOOKS_DRAWN.fullmatch(text) is not None and not _FILE_NAME.fullmatch(text))


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
    """Password, user, secret parameters, and what looks like a key in the path of an address."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return []
    found = [unquote(part) for part in (parts.password, parts.username) if part]
    found += [unquote(part) for part in parts.path.split("/") if _is_key_in_path(part)]
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
