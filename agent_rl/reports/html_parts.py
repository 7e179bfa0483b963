"""Parts of self-contained HTML pages: the frame with its style, tables, folded conversations, plots.

Nothing is fetched and nothing is run: a page is one file without scripts. Every text that is put in is escaped here, so
that what a model wrote is shown and never interpreted. What is HTML already is of the type `Html`.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NewType

Html = NewType("Html", str)
"""Markup that is safe to put into a page; plain `str` is escaped first."""

MAX_MESSAGE_CHARS = 12_000
"""Most that is shown of one message."""

STYLE = """
:root { --ink: #24292e; --soft: #5b6670; --line: #dde3e8; --back: #f6f8fa; --accent: #2c6e9b; --bad: #a23b2a; --good: #2f6b3a; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 4rem; color: var(--ink); background: #fff;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
p { margin: .4rem 0; } .soft, figcaption { color: var(--soft); font-size: .9rem; }
.lead { font-size: 1.1rem; border-left: 3px solid var(--accent); padding: .2rem 0 .2rem .8rem; margin: 1rem 0; }
.wide { overflow-x: auto; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); gap: 0 2rem; align-items: start; }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .22rem .9rem .22rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; font-size: .88rem; }
td.num, th.num { text-align: right; white-space: nowrap; }
figure { margin: .8rem 0; } figure img { max-width: 100%; height: auto; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; }
details > summary { cursor: pointer; padding: .35rem .7rem; } details[open] > summary { border-bottom: 1px solid var(--line); }
details > .inside { padding: .4rem .7rem .7rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--back); border-radius: 5px; padding: .5rem .7rem;
  margin: .25rem 0 .6rem; font: 12.5px/1.45 ui-monospace, "DejaVu Sans Mono", "Liberation Mono", monospace; }
.role { font-size: .8rem; font-weight: 600; color: var(--soft); text-transform: uppercase; letter-spacing: .04em; }
.assistant { border-left: 3px solid var(--accent); } .bad { color: var(--bad); } .good { color: var(--good); }
.tag { font-size: .85rem; color: var(--soft); margin-left: .6rem; }
@media print { details { break-inside: avoid; } }
"""  # noqa: E501


def page(title: str, body: Iterable[str]) -> str:
    """A whole document of parts that are HTML already."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{text(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f"<style>{STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def text(value: object) -> Html:
    """Anything as escaped text; half surrogate pairs, which UTF-8 cannot hold, as their escapes."""
    return Html(escape(str(value).encode("utf-8", "backslashreplace").decode()))


def element(tag: str, content: object, *, css: str = "") -> Html:
    """`<tag class=css>content</tag>` around text."""
    attribute = f' class="{escape(css)}"' if css else ""
    return Html(f"<{tag}{attribute}>{text(content)}</{tag}>")


def heading(content: object, level: int = 2) -> Html:
    return element(f"h{level}", content)


def paragraph(content: object, css: str = "") -> Html:
    return element("p", content, css=css)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, num_text: int = 1) -> Html:
    """A table of texts; all but the first `num_text` columns are numbers, at the right. Empty headers are no row."""
    css = ["" if column < num_text else "num" for column in range(len(headers))]
    head = "".join(element("th", name, css=css[i]) for i, name in enumerate(headers))
    first = f"<thead><tr>{head}</tr></thead>" if any(headers) else ""
    lines = ["<tr>" + "".join(element("td", cell, css=css[i]) for i, cell in enumerate(row)) + "</tr>" for row in rows]
    return Html(f'<div class="wide"><table>{first}<tbody>' + "\n".join(lines) + "</tbody></table></div>")


def image(uri: str, caption: str) -> Html:
    """A picture from a `data:` address."""
    return Html(
        f'<figure><img src="{escape(uri)}" alt="{text(caption)}"><figcaption>{text(caption)}</figcaption></figure>'
    )


def grid(parts: Iterable[Sequence[str]]) -> Html:
    """Groups of parts side by side where there is room."""
    return Html('<div class="grid">' + "\n".join(f"<div>{''.join(group)}</div>" for group in parts) + "</div>")


def folded(summary: str, content: Iterable[str], *, tag: str = "", is_open: bool = False) -> Html:
    """Parts that unfold on a click, under a line of text."""
    note = element("span", tag, css="tag") if tag else ""
    opened = " open" if is_open else ""
    inside = "\n".join(content)
    return Html(
        f'<details{opened}><summary>{text(summary)}{note}</summary><div class="inside">{inside}</div></details>'
    )


def conversation(messages: Sequence[Mapping[str, Any]]) -> Html:
    """A conversation as `telemetry/trajectory_json.py` records it, long texts cut."""
    return Html("\n".join(_message(message) for message in messages))


def _message(message: Mapping[str, Any]) -> str:
    role = str(message.get("role", ""))
    name = f" ({message['name']})" if message.get("name") else ""
    parts = [element("div", f"{role}{name}", css="role")]
    css = "assistant" if role == "assistant" else ""
    if message.get("reasoning"):
        parts.append(block(f"(thinks) {message['reasoning']}", css))
    if message.get("content"):
        parts.append(block(message["content"], css))
    for call in message.get("tool_calls", ()):
        parts.append(block(call_text(call), css))
    parts += [element("p", f"unreadable call: {error}", css="bad") for error in message.get("tool_errors", ())]
    return "\n".join(parts)


def call_text(call: Mapping[str, Any]) -> str:
    """A tool call to be read: the name, then each argument, text with its line breaks."""
    arguments = call.get("arguments") or {}
    if not isinstance(arguments, Mapping):
        return f"{call.get('name')} {arguments!r}"
    lines = [
        f"{key}:\n{value}" if isinstance(value, str) and "\n" in value else f"{key}: {value}"
        for key, value in arguments.items()
    ]
    return "\n".join([f"{call.get('name')}", *lines])


def block(content: object, css: str = "") -> Html:
    """Preformatted text, cut to `MAX_MESSAGE_CHARS`."""
    shown = str(content)
    if len(shown) > MAX_MESSAGE_CHARS:
        shown = f"{shown[:MAX_MESSAGE_CHARS]}\n... {len(shown) - MAX_MESSAGE_CHARS} more characters"
    return element("pre", shown, css=css)
