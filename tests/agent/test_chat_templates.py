"""What each family's template makes of replies and answers, as text that a reader can check by eye."""

import json

import pytest
from chat_templates import CHATML_TOKENS, FAMILIES, PLAIN, byte_level, format_of, text_of, tokenizer_of
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.agent.messages import Message, ToolCall, ToolSpec
from agent_rl.agent.segments import SegmentEncoder, TextSegment
from agent_rl.errors import CheckpointError, UserError

TOOLS = [ToolSpec(name="add", description="Sum of ü and v"), ToolSpec(name="submit", description="End")]
ADD, SUBMIT = ToolCall(name="add", arguments={"a": "ü"}), ToolCall(name="submit", arguments={})
RESULTS_AS_USER = 'user\n<tool_response>\n7 "x"\n</tool_response>\n<tool_response>\n8\n</tool_response>'


def suffix_text(family: str, *messages: Message) -> str:
    return text_of(family, format_of(family).render_env_messages(messages))


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("minimind", f"\n<|im_start|>{RESULTS_AS_USER}<|im_end|>\n<|im_start|>assistant\n"),
        ("qwen3", f"\n<|im_start|>{RESULTS_AS_USER}<|im_end|>\n<|im_start|>assistant\n"),
        ("plain", f"\n<|im_start|>{RESULTS_AS_USER}<|im_end|>\n<|im_start|>assistant\n"),
        ("smollm", '\n<|im_start|>tool\n7 "x"<|im_end|>\n<|im_start|>tool\n8<|im_end|>\n<|im_start|>assistant\n'),
        (
            "llama3",
            '<|start_header_id|>ipython<|end_header_id|>\n\n"7 \\"x\\""<|eot_id|>'
            '<|start_header_id|>ipython<|end_header_id|>\n\n"8"<|eot_id|>'
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            "mistral-first",
            '[TOOL_RESULTS] {"content": 7 "x", "call_id": "call00000"}[/TOOL_RESULTS]'
            '[TOOL_RESULTS] {"content": 8, "call_id": "call00001"}[/TOOL_RESULTS]',
        ),
        ("gemma2-gemma", f"\n<start_of_turn>{RESULTS_AS_USER}<end_of_turn>\n<start_of_turn>model\n"),
        ("gemma3-gemma", f"\n<start_of_turn>{RESULTS_AS_USER}<end_of_turn>\n<start_of_turn>model\n"),
    ],
)
def test_the_suffix_is_separator_answers_and_generation_prompt(family, text) -> None:
    assert suffix_text(family, Message.tool('7 "x"'), Message.tool("8")) == text


def test_a_template_that_leaves_out_tool_results_gets_them_in_a_user_turn() -> None:
    dropping = PLAIN.replace("for message in messages", "for message in messages if message.role != 'tool'")
    tokenizer = byte_level(dropping, CHATML_TOKENS)
    ids = ChatFormat(tokenizer).render_env_messages([Message.tool('7 "x"'), Message.tool("8")])
    assert tokenizer.decode(ids) == f"\n<|im_start|>{RESULTS_AS_USER}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("qwen2.5", "</tool_response><|im_end|>\n<|im_start|>user\nGo<|im_end|>\n<|im_start|>user\nOn<|im_end|>\n"),
        ("plain", "</tool_response><|im_end|>\n<|im_start|>user\nGo<|im_end|>\n<|im_start|>user\nOn<|im_end|>\n"),
        ("llama3", '"7"<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nGo<|eot_id|><|start_header_id|>user'),
        ("mistral-first", '{"content": 7, "call_id": "call00000"}[/TOOL_RESULTS][INST] Go\n\nOn[/INST]'),
        ("gemma3-gemma", "<tool_response>\n7\n</tool_response>\n\nGo\n\nOn<end_of_turn>\n<start_of_turn>model\n"),
    ],
)
def test_neighbouring_user_messages_become_one_only_where_the_template_must_have_it(family, text) -> None:
    assert text in suffix_text(family, Message.tool("7"), Message.user("Go"), Message.user("On"))


@pytest.mark.parametrize(
    ("family", "plain", "calls"),
    [
        ("qwen2.5", "7<|im_end|>", '<tool_call>\n{"name": "add", "arguments": {"a": "ü"}}\n</tool_call><|im_end|>'),
        ("llama3", "7<|eot_id|>", '{"name": "add", "parameters": {"a": "ü"}}<|eot_id|>'),
        ("mistral-first", " 7</s>", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": "ü"}, "id": "call00000"}]</s>'),
        (
            "gemma3-gemma",
            "7<end_of_turn>",
            '<tool_call>\n{"name": "add", "arguments": {"a": "ü"}}\n</tool_call><end_of_turn>',
        ),
        (
            "qwen3",
            "<think>\n\n</think>\n\n7<|im_end|>",
            '<think>\n\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": "ü"}}\n</tool_call><|im_end|>',
        ),
    ],
)
def test_a_reply_is_written_in_the_templates_own_way(family, plain, calls) -> None:
    chat = format_of(family)
    assert text_of(family, chat.render_completion(Message.assistant("7"))) == plain
    assert text_of(family, chat.render_completion(Message.assistant("", (ADD,)))) == calls


def test_calls_that_a_template_cannot_show_are_still_written_in_its_style() -> None:
    both = Message.assistant("I add.", (ADD, SUBMIT))
    assert text_of("llama3", format_of("llama3").render_completion(both)) == (
        'I add.\n<|python_tag|>{"name": "add", "parameters": {"a": "ü"}}; '
        '{"name": "submit", "parameters": {}}<|eot_id|>'
    )
    assert text_of("mistral-first", format_of("mistral-first").render_completion(both)) == (
        ' I add.[TOOL_CALLS] [{"name": "add", "arguments": {"a": "ü"}, "id": "call00000"}, '
        '{"name": "submit", "arguments": {}, "id": "call00001"}]</s>'
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_use_the_special_tokens_of_their_style(family) -> None:
    vocab = tokenizer_of(family).get_added_vocab()
    wanted = [vocab[token] for token in ("<tool_call>", "</tool_call>", "[TOOL_CALLS]") if token in vocab]
    ids = format_of(family).render_completion(Message.assistant("Hi", (ADD,)))
    assert [token for token in ids if token in wanted] == wanted


@pytest.mark.parametrize("system", ["Be brief.", "", None])
def test_a_template_that_cannot_list_tools_gets_them_in_the_system_message(system: str | None) -> None:
    messages = [] if system is None else [Message.system(system)]
    text = text_of("smollm", format_of("smollm").render_prompt([*messages, Message.user("Go")], TOOLS))
    start = "<|im_start|>system\nBe brief.\n\n# Tools\n" if system else "<|im_start|>system\n# Tools\n"
    assert text.startswith(start)
    listing = "\n".join(json.dumps(tool.to_openai(), ensure_ascii=False) for tool in TOOLS)
    assert f"<tools>\n{listing}\n</tools>" in text
    assert text.endswith("</tool_call><|im_end|>\n<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_without_system_messages_gets_them_in_front_of_the_question() -> None:
    for family in ("gemma2-gemma", "gemma3-gemma"):
        chat, messages = format_of(family), [Message.system("Be brief."), Message.user("Go")]
        wanted = "<bos><start_of_turn>user\nBe brief.\n\nGo<end_of_turn>\n<start_of_turn>model\n"
        assert text_of(family, chat.render_prompt(messages)) == wanted
        text = text_of(family, chat.render_prompt(messages, TOOLS))
        assert text.startswith("<bos><start_of_turn>user\nBe brief.\n\n# Tools\n\n")
        assert text.endswith("\n</tool_call>\n\nGo<end_of_turn>\n<start_of_turn>model\n")
    dropping = PLAIN.replace("for message in messages", "for message in messages if message.role != 'system'")
    tokenizer = byte_level(dropping, CHATML_TOKENS)
    ids = ChatFormat(tokenizer).render_prompt([Message.system("Be brief."), Message.user("Go")])
    assert tokenizer.decode(ids) == "<|im_start|>user\nBe brief.\n\nGo<|im_end|>\n<|im_start|>assistant\n"


def test_roles_that_no_shape_can_show_are_a_users_mistake_that_names_them() -> None:
    strict = "{%- if messages[-1].role == 'assistant' and add_generation_prompt %}{{- raise_exception('what now?') }}"
    chat = ChatFormat(byte_level(f"{strict}{{%- endif %}}{PLAIN}", CHATML_TOKENS))
    with pytest.raises(UserError, match=r"refuses a conversation of roles user, assistant \(what now\?\); use another"):
        chat.render_env_messages([])


def test_the_template_names_the_answering_tool_and_escapes_only_json() -> None:
    named = (
        "{%- for m in messages %}{{- '<|im_start|>' ~ m.role ~ ' ' ~ (m.name or '') ~ '\\n' }}"
        "{{- {'out': m.content, 'of': m.name} | tojson if m.role == 'tool' else m.content }}"
        "{{- '<|im_end|>' }}{%- for c in m.tool_calls or [] %}{{- (c.function | tojson) ~ '<|im_end|>' }}{%- endfor %}"
        "{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant \\n' }}{%- endif %}"
    )
    tokenizer = byte_level(named, CHATML_TOKENS)
    ids = ChatFormat(tokenizer).render_env_messages([Message.tool('a "q"\n', name="add"), Message.tool("8")])
    assert tokenizer.decode(ids) == (
        '<|im_start|>tool add\n{"out": "a \\"q\\"\\n", "of": "add"}<|im_end|>'
        '<|im_start|>tool \n{"out": "8", "of": ""}<|im_end|><|im_start|>assistant \n'
    )


def test_a_template_with_unknown_call_syntax_gets_the_readable_style() -> None:
    foreign = "{%- for tool in tools or [] %}{{- tool.function.name }}{%- endfor %}" + PLAIN.replace("~", "+").replace(
        "(message.content | trim)",
        "(message.content | trim) + (message.tool_calls[0].function.name + '()' if message.tool_calls else '')",
    )
    tokenizer = byte_level(foreign, CHATML_TOKENS)
    chat = ChatFormat(tokenizer)
    assert "<tools>\n" in tokenizer.decode(chat.render_prompt([Message.user("Go")], TOOLS))
    assert "<tool_call>\n" in tokenizer.decode(chat.render_completion(Message.assistant("", (ADD,))))


def test_a_tokenizer_that_starts_stretches_with_a_space_does_so_behind_special_tokens_only() -> None:
    tokenizer = tokenizer_of("gemma3-always")
    encoder = SegmentEncoder(tokenizer.backend_tokenizer, tokenizer.get_added_vocab())
    segments = [TextSegment("Add<eos>Add", True), TextSegment("<eos>", False)]
    behind_token = tokenizer("<eos>Add<eos>Add").input_ids[1:]
    assert encoder.encode(segments)[: len(behind_token)] == behind_token
    tokens = tokenizer.convert_ids_to_tokens(encoder.encode(segments, behind_text=True))
    assert "".join(tokens) == "Add<eos>▁Add<eos>"
    assert tokens.count("<eos>") == 1


def test_a_text_that_a_tokenizer_has_no_ids_for_is_one_sentence() -> None:
    tokenizer = Tokenizer(WordLevel({"known": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    encoder = SegmentEncoder(tokenizer, {})
    assert encoder.encode([TextSegment("known known", False)]) == [0, 0]
    with pytest.raises(CheckpointError, match="'other'"):
        encoder.encode([TextSegment("other", False)])


def test_a_template_that_writes_something_behind_the_content_gets_it_behind_the_content() -> None:
    tokenizer = byte_level(PLAIN.replace("(message.content | trim) +", "message.content + ' END' +"), CHATML_TOKENS)
    assert tokenizer.decode(ChatFormat(tokenizer).render_completion(Message.assistant("7"))) == "7 END<|im_end|>"


def test_reasoning_is_what_stands_before_the_last_closing_tag_and_its_calls_are_only_thoughts() -> None:
    chat, vocab = format_of("qwen3"), tokenizer_of("qwen3").get_added_vocab()
    thinking = Message(role="assistant", content="", reasoning="Maybe", tool_calls=(ADD,))
    thought = chat.render_completion(thinking)[:-1]
    opening, closing = vocab["<think>"], vocab["</think>"]
    rest = chat.render_completion(Message.assistant("Done", (SUBMIT,)))
    rest = rest[rest.index(closing) + 1 :]
    parsed = chat.parse_completion([*thought, closing, *rest])
    assert parsed.reasoning.startswith("Maybe") and '"name": "add"' in parsed.reasoning
    assert (parsed.content, [item.name for item in parsed.tool_calls]) == ("Done", ["submit"])
    unfinished = chat.parse_completion([opening, *chat.render_completion(Message.assistant("", (ADD,)))[4:]])
    assert (unfinished.content, unfinished.tool_calls, unfinished.tool_errors) == ("", (), ())
    again = chat.parse_completion([*rest[:-1], opening, *thought[thought.index(closing) + 1 :]])
    assert ([item.name for item in again.tool_calls], '"name": "add"' in again.reasoning) == (["submit"], True)


def test_characters_of_a_think_tag_in_an_argument_are_no_reasoning() -> None:
    chat = format_of("qwen3")
    message = Message.assistant("", (ToolCall(name="write", arguments={"text": "a </think> b"}),))
    parsed = chat.parse_completion(chat.render_completion(message))
    assert (parsed.reasoning, parsed.tool_calls[0].arguments) == ("", {"text": "a </think> b"})


def test_a_generation_prompt_that_opens_the_reasoning_makes_a_cut_off_reply_all_thought() -> None:
    opened = PLAIN.replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}").replace(
        "(message.content | trim)",
        "('<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' if message.role == 'assistant' "
        "else '') + message.content",
    )
    tokenizer = byte_level(opened, CHATML_TOKENS, ("<think>", "</think>", "<tool_call>", "</tool_call>"))
    chat = ChatFormat(tokenizer)
    message = Message(role="assistant", content="7", reasoning="Sum")
    ids = chat.render_completion(message)
    assert tokenizer.decode(ids) == "Sum\n</think>\n\n7<|im_end|>"
    assert chat.parse_completion(ids) == message
    assert chat.parse_completion(ids[:1]).content == ""
    assert tokenizer.decode(chat.render_completion(Message.assistant("7"))) == "\n</think>\n\n7<|im_end|>"


@pytest.mark.parametrize("shown", ["", "<think></think>\\n"])
def test_a_prompt_may_open_a_reasoning_that_finished_turns_do_not_show(shown: str) -> None:
    finished = f"('{shown}' if message.role == 'assistant' else '') + message.content"
    opened = PLAIN.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}").replace(
        "(message.content | trim)", finished
    )
    tokenizer = byte_level(opened, CHATML_TOKENS, ("<think>", "</think>"))
    chat = ChatFormat(tokenizer)
    message = Message(role="assistant", content="7", reasoning="Sum")
    assert tokenizer.decode(chat.render_prompt([Message.user("Go")])).endswith("<|im_start|>assistant\n<think>\n")
    assert tokenizer.decode(chat.render_completion(message)) == "Sum\n</think>\n\n7<|im_end|>"
    assert tokenizer.decode(chat.render_completion(Message.assistant("7"))) == "\n</think>\n\n7<|im_end|>"
    assert chat.parse_completion(chat.render_completion(message)) == message


def test_a_template_that_wants_one_call_in_front_of_results_gets_one() -> None:
    strict = (
        "{%- for m in messages %}{%- if m.role == 'tool' and not loop.previtem.tool_calls"
        " and loop.previtem.role != 'tool' or m.tool_calls and m.tool_calls | length > 1 %}"
        "{{- raise_exception('one call, please') }}{%- endif %}{%- endfor %}"
    )
    tokenizer = byte_level(strict + PLAIN.replace("'user', ", "'user', 'tool', "), CHATML_TOKENS)
    ids = ChatFormat(tokenizer).render_env_messages([Message.tool("7"), Message.tool("8")])
    assert tokenizer.decode(ids).startswith("\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>tool\n8<|im_end|>\n")


def test_the_families_that_rewrite_earlier_messages_are_known() -> None:
    rewriting = {family for family in FAMILIES if format_of(family).rewrites_history}
    assert rewriting == {"qwen3", "mistral-first", "mistral-always", "mistral-never", "mistral-legacy"}
    forgetting = PLAIN.replace("'\\n' + (", "'\\n' + (message.reasoning_content or '' if loop.last else '') + (")
    assert ChatFormat(byte_level(forgetting, CHATML_TOKENS)).rewrites_history


def test_a_pattern_of_answers_is_rendered_by_the_template_once(monkeypatch) -> None:
    tokenizer = byte_level(PLAIN, CHATML_TOKENS)
    chat = ChatFormat(tokenizer)
    chat.render_env_messages([Message.tool("1"), Message.user("a")])
    monkeypatch.setattr("agent_rl.agent.chat_template.render", None)
    chat.render_env_messages([Message.tool("2"), Message.user("b")])
    with pytest.raises(UserError, match="refuses"):
        chat.render_env_messages([Message.user("a"), Message.tool("1")])
