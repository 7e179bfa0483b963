"""The chat format of each `agent.type`: the one place that knows all of them.

Not here: what they do.
"""

from typing import TYPE_CHECKING

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.agent.code_format import CodeFormat
from agent_rl.agent.react_format import ReactFormat
from agent_rl.config import AgentType

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FORMATS: dict[AgentType, type[ChatFormat]] = {"hf": ChatFormat, "react": ReactFormat, "code": CodeFormat}


def make_chat_format(tokenizer: "PreTrainedTokenizerBase", agent_type: AgentType = "hf") -> ChatFormat:
    """How a model with this tokenizer is prompted and read; UserError for a tokenizer that `ChatFormat` refuses."""
    return _FORMATS[agent_type](tokenizer)
