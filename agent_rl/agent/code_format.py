"""Acting by code: a reply with fenced Python is run, a reply without is the final answer.

    I add them.
    ```python
    print(3 + 4)
    ```

As a `Message`: all blocks of a reply, joined by an empty line as smolagents does, are the `code` of one call of
`code_exec`; `content` is what stands around them. Only fences marked `python` or `py`, alone on their line, count; one
that is never closed makes the reply a broken call, and nothing of it is run. A fence of more than three backticks is
closed by as many, so code may hold fences of its own. Results come back as `Output:` and what the tool gave.
"""

import re
from collections.abc import Sequence

from agent_rl.agent.messages import Message, ToolCall, ToolCallError, ToolSpec
from agent_rl.agent.text_actions import TextActionFormat
from agent_rl.errors import UserError

CODE_TOOL = "code_exec"
"""The one tool that blocks are given to."""

_OPENING = re.compile(r" {0,3}(`{3,})(?:python|py)[ \t]*")
_CLOSING = re.compile(r" {0,3}(`{3,})[ \t]*")
_BACKTICKS = re.compile("`+")
_UNCLOSED = "The block is not finished: no closing fence follows. Write\n```python\n...\n```"
_RULES = """\
You act by writing Python. Put code into a block:

```python
print(3 + 4)
```

It is run, and what it gives comes back as Output. A reply without such a block is your final answer."""


class CodeFormat(TextActionFormat):
    """Python blocks for an episode whose only tool is `code_exec`; `rules` raises UserError for any other."""

    result_label = "Output:\n"

    def rules(self, tools: Sequence[ToolSpec]) -> str:
        names = [tool.name for tool in tools]
        if names != [CODE_TOOL]:
            raise UserError(
                f"agent.type = 'code' takes an episode whose only tool is {CODE_TOOL!r}, this one offers "
                f"{', '.join(map(repr, names)) or 'none'}; leave the others out, or set agent.type to hf or react"
            )
        return f"{_RULES}\n\n{CODE_TOOL}: {tools[0].description}"

    def write(self, message: Message) -> Message:
        blocks = [_block(call) for call in message.tool_calls]
        text = "\n".join(filter(None, [message.content, *blocks]))
        return Message(role="assistant", content=text, reasoning=message.reasoning)

    def read(self, text: str) -> Message:
        return read_blocks(text)


def _block(call: ToolCall) -> str:
    code = call.arguments.get("code")
    if call.name != CODE_TOOL or not isinstance(code, str) or len(call.arguments) > 1:
        raise UserError(
            f"agent.type = 'code': a call of {call.name!r} with {', '.join(call.arguments) or 'no arguments'} cannot "
            f"be written as a block, which is the 'code' of {CODE_TOOL!r}; set agent.type to hf or react"
        )
    longest = max(map(len, _BACKTICKS.findall(code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{code}\n{fence}"


def read_blocks(text: str) -> Message:
    """The reply in a text, nothing raises. Linear in the text."""
    around: list[str] = []
    blocks: list[str] = []
    code: list[str] = []
    fence, position, first, last = "", 0, 0, 0
    for line in text.split("\n"):
        end = position + len(line)
        opening, closing = _OPENING.fullmatch(line), _CLOSING.fullmatch(line)
        if fence and closing and len(closing[1]) >= len(fence):
            blocks.append("\n".join(code))
            fence, last = "", end
        elif fence:
            code.append(line)
        elif opening:
            fence, code, last = opening[1], [], position
            if not blocks:
                first = position
        else:
            around.append(line)
        position = end + 1
    content = "\n".join(around).strip()
    if fence:
        error = ToolCallError(kind="unclosed", message=_UNCLOSED, span=(last, len(text)))
        return Message(role="assistant", content=content, tool_errors=(error,))
    calls = (ToolCall(name=CODE_TOOL, arguments={"code": "\n\n".join(blocks)}, span=(first, last)),) if blocks else ()
    return Message.assistant(content, calls)
