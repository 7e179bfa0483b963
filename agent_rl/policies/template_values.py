"""A chat template from a file, and values for a template's variables, such as Qwen3's `enable_thinking`, in its text.

So every place that renders it, and every program that reads the saved model, shows the same text. Not here: rendering.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agent_rl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TemplateValue = bool | int | float | str


def set_template(tokenizer: "PreTrainedTokenizerBase", path: Path) -> None:
    """Let the text of a file be the tokenizer's template. ConfigError where it is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text in UTF-8"
        raise ConfigError(
            f"model.chat_template = {str(path)!r} cannot be read ({reason}); give a .jinja file"
        ) from None
    if "messages" not in text:
        raise ConfigError(f"model.chat_template = {str(path)!r} is no chat template: it reads no 'messages'")
    tokenizer.chat_template = text


def set_template_values(tokenizer: "PreTrainedTokenizerBase", values: Mapping[str, TemplateValue]) -> None:
    """Set variables at the start of the tokenizer's template; once more changes nothing.

    ConfigError for a variable that the template does not read.
    """
    if not values or not tokenizer.chat_template:  # a missing template is refused where a chat format is made of it
        return
    templates = tokenizer.chat_template
    if isinstance(templates, dict):
        tokenizer.chat_template = {name: _with_values(text, values, tokenizer) for name, text in templates.items()}
    else:
        tokenizer.chat_template = _with_values(templates, values, tokenizer)


def _with_values(template: str, values: Mapping[str, TemplateValue], tokenizer: "PreTrainedTokenizerBase") -> str:
    start = "".join(f"{{%- set {name} = {_literal(value)} %}}" for name, value in values.items())
    if template.startswith(start):
        return template
    for name in values:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise ConfigError(
                f"model.chat_template_kwargs: the chat template of {tokenizer.name_or_path} reads no {name!r}; look at "
                "its chat_template.jinja"
            )
    return start + template


def _literal(value: TemplateValue) -> str:
    return str(value).lower() if isinstance(value, bool) else json.dumps(value, ensure_ascii=False)
