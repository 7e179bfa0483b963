"""The program that renders chat templates: a request is a line of JSON, an answer a line with a kind and a size, then
so many bytes of text.

`template_process.py` starts it; it imports nothing of this package. The environment is that of Transformers'
`apply_chat_template`, so that a template writes here what it writes there.
"""

import json
import resource
import signal
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CPU_S = 1.0
"""For one text."""
MAX_MEMORY_BYTES = 2**29
MAX_CHARS = 2**22


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what a reply is made of, and writes nothing of its own."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Any) -> Any:
        return caller()


def _raise(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


@lru_cache(maxsize=64)
def _compiled(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def _render(source: str, arguments: dict[str, Any]) -> str:
    parts, room = [], MAX_CHARS
    for part in _compiled(source).generate(**arguments):
        parts.append(part)
        room -= len(part)
        if room < 0:
            raise ValueError(f"it writes more than {MAX_CHARS} characters")
    return "".join(parts)


def _answer(request: dict[str, Any]) -> tuple[str, str]:
    try:
        return "text", _render(request["template"], request["arguments"])
    except Exception as error:  # whatever a template does, it is what the template refuses
        return "error", " ".join(str(error)[:500].split()) or type(error).__name__


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)  # which ends the process
        kind, text = _answer(json.loads(line))
        written = text.encode(errors="surrogatepass")
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        sys.stdout.buffer.write(f"{kind} {len(written)}\n".encode() + written)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
