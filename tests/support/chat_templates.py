"""Chat templates that behave as those of well-known families do, and small tokenizers of the same kinds."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agent_rl.agent.chat_format import ChatFormat

CORPUS = [
    f"Add {n} and 4 now, please. I say yes: the sum is {n}.\n\n  system user assistant model ipython tool\n"
    f'{{"name": "add", "arguments": {{"a": {n}, "b": [1, null]}}}} {{"name": "add", "parameters": {{"a": "ü"}}}}\n'
    f'"content": "error: no such file", "call_id": "call0000{n}"\n<tool_response>\n{n}\n</tool_response>\n'
    for n in range(10)
]

CHATML = """\
{%- for message in messages %}
{%- if loop.first and message.role != 'system' %}
{{- '<|im_start|>system\\nYou are a small assistant.<|im_end|>\\n' }}
{%- endif %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""SmolLM2: any role by its name, a default system message, neither tools nor calls."""

PLAIN = (
    "{%- for message in messages %}"
    "{%- if message.role not in ['system', 'user', 'assistant'] %}{{- raise_exception('unknown role') }}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\\n' + (message.content | trim) + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""ChatML that refuses tool results."""

_HERMES_CALLS = """
{%- for call in message.tool_calls or [] %}
{%- set call = call.function or call %}
{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' ~ (call.arguments | tojson) ~ '}\\n</tool_call>' }}
{%- endfor %}"""
_HERMES_RESULTS = """
{%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}"""
_HERMES_TOOLS = """
{{- '# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' ~ (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\n\\nAnswer with <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call><|im_end|>\\n' }}"""

QWEN25 = f"""\
{{%- set has_system = messages[0].role == 'system' %}}
{{{{- '<|im_start|>system\\n' ~ (messages[0].content if has_system else 'You are Qwen.') }}}}
{{%- if tools %}}{{{{- '\\n\\n' }}}}{_HERMES_TOOLS}
{{%- else %}}{{{{- '<|im_end|>\\n' }}}}{{%- endif %}}
{{%- for message in messages %}}
{{%- if message.role == 'tool' %}}{_HERMES_RESULTS}
{{%- elif not (loop.first and has_system) %}}
{{{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content }}}}{_HERMES_CALLS}
{{{{- '<|im_end|>\\n' }}}}
{{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\\n' }}}}{{%- endif %}}
"""
"""Qwen2.5: a default system message, tools in it, results of one answer in one user turn."""

QWEN3 = f"""\
{{%- set has_system = messages[0].role == 'system' %}}
{{%- if has_system or tools %}}
{{{{- '<|im_start|>system\\n' }}}}
{{%- if has_system %}}{{{{- messages[0].content ~ ('\\n\\n' if tools else '') }}}}{{%- endif %}}
{{%- if tools %}}{_HERMES_TOOLS}
{{%- else %}}{{{{- '<|im_end|>\\n' }}}}{{%- endif %}}
{{%- endif %}}
{{%- set last = namespace(query=-1) %}}
{{%- for message in messages %}}
{{%- if message.role == 'user' and not message.content.startswith('<tool_response>') %}}
{{%- set last.query = loop.index0 %}}
{{%- endif %}}
{{%- endfor %}}
{{%- for message in messages %}}
{{%- if message.role == 'tool' %}}{_HERMES_RESULTS}
{{%- elif message.role == 'assistant' %}}
{{%- set content = message.content %}}
{{%- set thought = message.reasoning_content or '' %}}
{{%- if not thought and '</think>' in content %}}
{{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}}
{{%- set content = content.split('</think>')[-1].lstrip('\\n') %}}
{{%- endif %}}
{{{{- '<|im_start|>assistant\\n' }}}}
{{%- if loop.index0 > last.query and (loop.last or thought) %}}
{{{{- '<think>\\n' ~ thought.strip('\\n') ~ '\\n</think>\\n\\n' ~ content.lstrip('\\n') }}}}
{{%- else %}}{{{{- content }}}}
{{%- endif %}}{_HERMES_CALLS}
{{{{- '<|im_end|>\\n' }}}}
{{%- elif not (loop.first and has_system) %}}
{{{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}}}
{{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\\n' }}}}
{{%- if enable_thinking is defined and enable_thinking is false %}}
{{{{- '<think>\\n\\n</think>\\n\\n' }}}}
{{%- endif %}}
{{%- endif %}}
"""
"""Qwen3: the last reply is shown with its reasoning, an empty one too; that of earlier questions is cut out."""

LLAMA3 = """\
{{- bos_token }}
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
{%- set system = messages[0].content | trim %}{%- set messages = messages[1:] %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' ~ ('Environment: ipython\\n' if tools is not none else '') }}
{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' ~ strftime_now('%b %Y') ~ '\\n\\n' ~ system ~ '<|eot_id|>' }}
{%- if tools is not none %}
{%- if not messages %}{{- raise_exception('no first user message for the tools') }}{%- endif %}
{{- '<|start_header_id|>user<|end_header_id|>\\n\\nGiven the functions, respond with a JSON for a call.\\n\\n' }}
{%- for tool in tools %}{{- (tool | tojson(indent=4)) ~ '\\n\\n' }}{%- endfor %}
{{- (messages[0].content | trim) ~ '<|eot_id|>' }}
{%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
{%- if 'tool_calls' in message %}
{%- if message.tool_calls | length != 1 %}{{- raise_exception('only single calls at once') }}{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' ~ call.name ~ '", "parameters": ' }}
{{- (call.arguments | tojson) ~ '}<|eot_id|>' }}
{%- elif message.role in ['tool', 'ipython'] %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' ~ (message.content | tojson) ~ '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' ~ (message.content | trim) ~ '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
"""Llama 3.1: the date, tools in the first user message, one call a reply, results as JSON strings."""

MISTRAL = """\
{%- set turns = messages[1:] if messages[0].role == 'system' else messages %}
{%- set users = turns | selectattr('role', 'equalto', 'user') | list %}
{%- set plain = namespace(count=0) %}
{%- for message in turns %}
{%- if message.role != 'tool' and not message.tool_calls %}
{%- if (message.role == 'user') != (plain.count % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}
{%- set plain.count = plain.count + 1 %}
{%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in turns %}
{%- set id = message.tool_call_id %}
{%- if message.role == 'user' %}
{%- if tools and message == users[-1] %}
{{- '[AVAILABLE_TOOLS] [' }}
{%- for tool in tools %}
{{- '{"type": "function", "function": {' }}
{%- for key, value in tool.function.items() %}
{{- '"' ~ key ~ '": ' ~ ('"' ~ value ~ '"' if value is string else value | tojson) ~ ('' if loop.last else ', ') }}
{%- endfor %}
{{- '}}' ~ (']' if loop.last else ', ') }}
{%- endfor %}
{{- '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{%- set system = messages[0].content ~ '\\n\\n' if loop.last and messages[0].role == 'system' else '' %}
{{- '[INST] ' ~ system ~ message.content ~ '[/INST]' }}
{%- elif message.tool_calls %}
{{- '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{- raise_exception('ids have 9 characters') }}{%- endif %}
{{- (call.function | tojson)[:-1] ~ ', "id": "' ~ call.id ~ '"}' ~ ('' if loop.last else ', ') }}
{%- endfor %}
{{- ']' ~ eos_token }}
{%- elif message.role == 'assistant' %}
{{- ' ' ~ (message.content | trim) ~ eos_token }}
{%- elif message.role == 'tool' %}
{%- if id is not defined or id | length != 9 %}{{- raise_exception('ids have 9 characters') }}{%- endif %}
{{- '[TOOL_RESULTS] {"content": ' ~ message.content ~ ', "call_id": "' ~ id ~ '"}[/TOOL_RESULTS]' }}
{%- else %}{{- raise_exception('unknown role') }}
{%- endif %}
{%- endfor %}
"""
"""Mistral v0.3: tools and system message at the last user message, ids, strict alternation, no generation prompt."""

GEMMA3 = """\
{{- bos_token }}
{%- set turns = messages[1:] if messages[0].role == 'system' else messages %}
{%- for message in turns %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}
{{- '<start_of_turn>' ~ ('model' if message.role == 'assistant' else message.role) ~ '\\n' }}
{%- if loop.first and messages[0].role == 'system' %}{{- messages[0].content ~ '\\n\\n' }}{%- endif %}
{{- (message.content | trim) ~ '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
"""
"""Gemma 3: a system message in front of the first question, nothing but questions and answers by turns."""

GEMMA2 = "{%- if messages[0].role == 'system' %}{{- raise_exception('no system role') }}{%- endif %}" + GEMMA3
"""Gemma 2: the same without a system message."""

CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3_TOKENS = (
    *("<|end_of_text|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
)
MISTRAL_TOKENS = (
    *("</s>", "<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)
GEMMA_TOKENS = ("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")


def byte_level(template: str | None, special: Sequence[str], added: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A byte-level BPE as of Qwen and Llama 3; the first of `special` is eos, the second bos."""
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _finish(tokenizer, template, special, added)


def sentencepiece(kind: str, template: str, special: Sequence[str]) -> PreTrainedTokenizerFast:
    """A BPE with spaces as `▁` and bytes for rare characters, in one of the forms that conversions have.

    `kind`: Metaspace's prepend scheme `first`, `always` or `never`; `legacy` for Prepend and Replace; `gemma` for
    Replace alone.
    """
    trained = Tokenizer(models.BPE())
    lines = pre_tokenizers.Split("\n", "isolated")
    trained.pre_tokenizer = pre_tokenizers.Sequence([lines, pre_tokenizers.Metaspace(prepend_scheme="never")])
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    state: dict[str, Any] = json.loads(trained.to_str())
    names = ["<unk>", *special, *(f"<0x{byte:02X}>" for byte in range(256)), *state["model"]["vocab"]]
    state["model"].update(
        vocab={name: number for number, name in enumerate(names)}, unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.pre_tokenizer = None  # type: ignore[assignment]
    spaces, bytes_to_text = decoders.Replace("▁", " "), [decoders.ByteFallback(), decoders.Fuse()]
    if kind in ("first", "always", "never"):
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=False)
        tokenizer.decoder = decoders.Sequence([spaces, *bytes_to_text])
    elif kind == "legacy":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([spaces, *bytes_to_text, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence([spaces, *bytes_to_text])
    return _finish(tokenizer, template, special)


def _finish(
    tokenizer: Tokenizer, template: str | None, special: Sequence[str], added: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=special[0],
        bos_token=special[1],
        pad_token=special[0],
        chat_template=template,
    )


@cache
def tokenizer_of(family: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a family, template included."""
    calls = ("<tool_call>", "</tool_call>")
    match family.split("-"):
        case ["minimind"]:
            return AutoTokenizer.from_pretrained("model/nat_minimind")
        case ["smollm"]:
            return byte_level(CHATML, CHATML_TOKENS)
        case ["plain"]:
            return byte_level(PLAIN, CHATML_TOKENS, calls)
        case ["qwen2.5"]:
            return byte_level(QWEN25, CHATML_TOKENS, calls)
        case ["qwen3"]:
            results = ("<tool_response>", "</tool_response>")
            return byte_level(QWEN3, CHATML_TOKENS, (*calls, *results, "<think>", "</think>"))
        case ["llama3"]:
            return byte_level(LLAMA3, LLAMA3_TOKENS)
        case ["mistral", kind]:
            return sentencepiece(kind, MISTRAL, MISTRAL_TOKENS)
        case ["gemma2", kind]:
            return sentencepiece(kind, GEMMA2, GEMMA_TOKENS)
        case ["gemma3", kind]:
            return sentencepiece(kind, GEMMA3, GEMMA_TOKENS)
    raise KeyError(family)


FAMILIES = (
    *("minimind", "smollm", "plain", "qwen2.5", "qwen3", "llama3"),
    *("mistral-first", "mistral-always", "mistral-never", "mistral-legacy"),
    *("gemma2-gemma", "gemma3-gemma", "gemma3-first", "gemma3-always", "gemma3-legacy"),
)
"""One tokenizer each; what follows the hyphen is the `kind` of `sentencepiece`."""


@cache
def format_of(family: str) -> ChatFormat:
    """The chat format of a family."""
    return ChatFormat(tokenizer_of(family))


def text_of(family: str, ids: Sequence[int]) -> str:
    """Text of ids, special tokens included."""
    return tokenizer_of(family).decode(ids, skip_special_tokens=False)
