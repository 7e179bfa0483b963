"""Acting by code: a reply with fenced Python is run, a reply without is the final answer.

    I add them.
    ```python
    print(3 + 4)
    ```

As a `Message`: all blocks of a reply, joined by an empty line as smolagents does, are the `code` of one call of
`code_exec`; `content` is what stands around them. Only fences marked as Python count; one that is never closed makes
the reply a broken call, and nothing of it is run. Results come back as `Output:` and what the tool gave.
Not here: what a fence is (`fences.py`).
"""

import re
from collections.abc import Sequence

from agent_rl.agent.fences import PYTHON, read_fences
from agent_rl.agent.messages import Message, ToolCall, ToolCallError, ToolSpec
from agent_rl.agent.text_actions import TextActionFormat
from agent_rl.errors import UserError

CODE_TOOL = "code_exec"
"""The one tool that blocks are given to."""

_BACKTICKS = re.compile("`+")
_UNCLOSED = "The block is not finished: no closing fence follows. Write\n```python\n...\n```"
_RULES = """\
You act by writing Python. Put code into a block:

```python
print(3 + 4)
```

It is run, and what it gives comes back as Output. A reply without such a block is your final answer."""


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
    blocks = [block for block in read_fences(text) if block.language in PYTHON]
    around, position = "", 0
    for block in blocks:
        before = text[position : block.span[0]]
        around += before if before.endswith("\n") or not before else f"{before}\n"
        position = block.span[1] + 1
    content = f"{around}{text[position:]}".strip()
    if not blocks:
        return Message.assistant(content)
    first, last = blocks[0], blocks[-1]
    if not last.is_closed:
        error = ToolCallError(kind="unclosed", message=_UNCLOSED, span=last.span)
        return Message(role="assistant", content=content, tool_errors=(error,))
    code = "\n\n".join(block.code.removesuffix("\n") for block in blocks)
    call = ToolCall(name=CODE_TOOL, arguments={"code": code}, span=(first.span[0], last.span[1]))
    return Message.assistant(content, (call,))


class CodeFormat(TextActionFormat):
    """Python blocks for an episode whose only tool is `code_exec`; `rules` raises UserError for any other."""

    result_label = "Output:\n"
    read = staticmethod(read_blocks)

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
