"""The chat format of an `agent.type`."""

from typing import TYPE_CHECKING

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.registry import CHAT_FORMATS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def make_chat_format(tokenizer: "PreTrainedTokenizerBase", agent_type: str = "hf") -> ChatFormat:
    """Make the format that renders prompts for a model with this tokenizer and parses its completions.

    ConfigError for an unknown type, UserError for a tokenizer that `ChatFormat` refuses.
    """
    return CHAT_FORMATS.get(agent_type)(tokenizer)
