"""Settings for pages that are shared: addresses without user names, keys and parameters.

Not here: the settings of a run (`config.yaml`), which hold everything.
"""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "(not shown)"
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*://)(?:[^/\s?#@]*@)?(?P<place>[^\s?#]*)(?P<rest>[?#]\S*)?")
_PRIVATE = ("default_params",)
"""Keys whose values are parameters of requests; their names are shown."""


def redacted(value: Any) -> Any:
    """`{"url": "https://me:pw@host/mcp?key=1"}` as `{"url": "https://host/mcp?(not shown)"}`; the rest as it is."""
    if isinstance(value, Mapping):
        return {key: _hidden(each) if str(key).endswith(_PRIVATE) else redacted(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(each) for each in value]
    return _ADDRESS.sub(_shown, value) if isinstance(value, str) else value


def _hidden(value: Any) -> Any:
    return dict.fromkeys(value, HIDDEN) if isinstance(value, Mapping) else HIDDEN


def _shown(found: re.Match[str]) -> str:
    return f"{found['scheme']}{found['place']}{'?' + HIDDEN if found['rest'] else ''}"
