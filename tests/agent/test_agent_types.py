"""Code agents: what the model reads and what is read of its replies; and the chat format's laws for them and ReAct."""

from functools import cache

import pytest
from builders import call
from chat_templates import FAMILIES, format_of, text_of, tokenizer_of
from cpu_time import cpu_s
from fakes import save_tiny_model, tiny_config
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_rl.agent.chat_format import ChatFormat, make_chat_format
from agent_rl.agent.code_format import read_blocks
from agent_rl.agent.messages import Message, ToolCall, ToolSpec
from agent_rl.agent.react_format import read_step
from agent_rl.errors import UserError
from agent_rl.policies.make_policy import make_in_process_policy
from agent_rl.policies.remote_policy import RemotePolicy

SEARCH = ToolSpec(name="search", description="Finds passages", parameters={"type": "object", "properties": {}})
CODE = ToolSpec(name="code_exec", description="Runs Python 3.")
TOOLS = {"react": (SEARCH, ToolSpec(name="submit", description="End")), "code": (CODE,)}
every_family = pytest.mark.parametrize("family", FAMILIES)
both_types = pytest.mark.parametrize("agent_type", ["react", "code"])


@cache
def format_for(family: str, agent_type: str) -> ChatFormat:
    return make_chat_format(tokenizer_of(family), agent_type)


def calls_of(message: Message) -> list[tuple[str, dict]]:
    return [(item.name, item.arguments) for item in message.tool_calls]


# Code


def test_a_code_prompt_explains_blocks_and_what_runs_them() -> None:
    text = text_of("qwen2.5", format_for("qwen2.5", "code").render_prompt([Message.user("Add")], [CODE]))
    assert text.startswith("<|im_start|>system\nYou act by writing Python.")
    assert "A reply without such a block is your final answer.\n\ncode_exec: Runs Python 3.<|im_end|>" in text


@pytest.mark.parametrize(
    ("tools", "named"), [((CODE, SEARCH), "'code_exec', 'search'"), ((SEARCH,), "'search'"), ((), "none")]
)
def test_a_code_agent_takes_no_other_tool(tools: tuple[ToolSpec, ...], named: str) -> None:
    with pytest.raises(UserError, match=f"whose only tool is 'code_exec', this one offers {named}; "):
        format_for("qwen2.5", "code").render_prompt([Message.user("Add")], tools)


def test_a_block_is_a_call_of_code_exec_and_the_rest_is_content() -> None:
    step = read_blocks("I add.\n```python\nprint(3 +\n  4)\n```\nNow I wait.")
    assert (step.content, calls_of(step)) == ("I add.\nNow I wait.", [("code_exec", {"code": "print(3 +\n  4)"})])


def test_several_blocks_are_joined_and_other_fences_are_text() -> None:
    text = "```py\na = 1\n```\n```bash\nls\n```\n ```python \nprint(a)\n```"
    step = read_blocks(text)
    assert (step.content, calls_of(step)) == ("```bash\nls\n```", [("code_exec", {"code": "a = 1\n\nprint(a)"})])
    assert step.tool_calls[0].span == (0, len(text))


@pytest.mark.parametrize("text", ["The answer is 7.", "```\nprint(7)\n```", "Use ```python print(7)``` here", ""])
def test_a_reply_without_a_python_block_is_the_final_answer(text: str) -> None:
    assert read_blocks(text) == Message.assistant(text)


def test_a_block_that_is_never_closed_is_an_error_and_nothing_runs() -> None:
    for text in ("```python\nprint(7)", "```python\na = 1\n```\nSo:\n```python\nprint(7)```", "````python\n1\n```"):
        step = read_blocks(text)
        assert step.tool_calls == ()
        assert [error.kind for error in step.tool_errors] == ["unclosed"]
        assert text[step.tool_errors[0].span[0] :].startswith("```")


def test_output_comes_back_in_a_user_message() -> None:
    ids = format_for("gemma2-gemma", "code").render_env_messages([Message.tool("7")])
    assert text_of("gemma2-gemma", ids) == ("\n<start_of_turn>user\nOutput:\n7<end_of_turn>\n<start_of_turn>model\n")


@pytest.mark.parametrize(
    "wrong", [call("search", query="x"), call("code_exec", code=1), call("code_exec", code="1", n=2)]
)
def test_a_call_that_is_no_code_cannot_be_written_as_a_block(wrong: ToolCall) -> None:
    with pytest.raises(UserError, match="cannot be written as a block"):
        format_for("plain", "code").render_completion(Message.assistant("", (wrong,)))


def test_text_beside_a_block_that_holds_another_is_refused() -> None:
    message = Message.assistant("So:\n```python\n1\n```", (call("code_exec", code="2"),))
    with pytest.raises(UserError, match="cannot be written so that it is read as it was meant"):
        format_for("plain", "code").render_completion(message)


# Laws of both, for every template


@both_types
def test_results_in_front_of_the_first_reply_are_shown_as_all_others(agent_type: str) -> None:
    chat, question = format_for("qwen2.5", agent_type), Message.user("Go on")
    ids = chat.render_prompt([question, Message.tool("7"), Message.tool("8")], TOOLS[agent_type])
    label = {"react": "Observation: ", "code": "Output:\n"}[agent_type]
    shown = chat.render_prompt([question, Message.user(f"{label}7\n{label}8")], TOOLS[agent_type])
    assert ids == shown


words = st.sampled_from(["Add 3 and 4 now", "ü ist größer, ok?", "two\n\n  lines", '{"a": 1}', "<tool_call>", "数 🙂"])
hostile = words | st.sampled_from(["<|im_end|>\n", "```", "\n```\n", "`````", "Observation: 7", "</think>[/INST]", ""])
thoughts = st.just("") | words
react_replies = st.one_of(
    st.builds(lambda answer, thought: Message(role="assistant", content=answer, reasoning=thought), words, thoughts),
    st.builds(
        lambda name, arguments, thought: Message(
            role="assistant", content="", tool_calls=(call(name, **arguments),), reasoning=thought
        ),
        st.sampled_from(["search", "submit", "größe"]),
        st.dictionaries(st.sampled_from("abc"), hostile | st.integers() | st.lists(hostile, max_size=2), max_size=3),
        thoughts,
    ),
)
programs = st.lists(hostile | st.sampled_from(["print(1)\n", "    x = '  '", "\t", "\n"]), max_size=4).map("".join)
code_replies = st.one_of(
    words.map(Message.assistant),
    st.builds(lambda content, code: Message.assistant(content, (call("code_exec", code=code),)), thoughts, programs),
)
replies = {"react": react_replies, "code": code_replies}
answers = st.lists(st.builds(Message.tool, hostile) | st.builds(Message.user, words), max_size=3)


@every_family
@both_types
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_a_reply_survives_the_way_to_ids_and_back(family, agent_type, data) -> None:
    chat, message = format_for(family, agent_type), data.draw(replies[agent_type])
    ids = chat.render_completion(message)
    assert ids[-1] == chat.stop_token_ids[0]
    parsed = chat.parse_completion(ids)
    assert (parsed.content, parsed.reasoning, parsed.tool_errors) == (message.content, message.reasoning, ())
    assert calls_of(parsed) == calls_of(message)
    assert chat.parse_completion(ids[:-1]) == parsed


@every_family
@both_types
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_a_prompt_is_the_one_before_plus_completion_plus_environment_suffix(family, agent_type, data) -> None:
    chat, tools = format_for(family, agent_type), TOOLS[agent_type]
    conversation = [*data.draw(st.sampled_from([(), (Message.system("Be brief."),)])), Message.user(data.draw(hostile))]
    ids = chat.render_prompt(conversation, tools)
    for reply, answer in data.draw(st.lists(st.tuples(replies[agent_type], answers), min_size=1, max_size=4)):
        conversation += [reply, *answer]
        ids = ids + chat.render_completion(reply) + chat.render_env_messages(answer)
        assert chat.render_prompt(conversation, tools) == ids


@every_family
@both_types
def test_special_tokens_in_texts_stay_plain_text(family, agent_type) -> None:
    chat, control = format_for(family, agent_type), set(tokenizer_of(family).get_added_vocab().values())

    def num_control(text: str) -> int:
        tool = ToolSpec(name=TOOLS[agent_type][0].name, description=text)
        turn = {"react": call("search", query=text), "code": call("code_exec", code=text)}[agent_type]
        ids = chat.render_prompt([Message.system(text), Message.user(text)], [tool])
        ids += chat.render_completion(Message.assistant(text, (turn,))) + chat.render_env_messages([Message.tool(text)])
        return sum(token in control for token in ids)

    assert num_control("<|im_end|></think><|eot_id|>[TOOL_CALLS]</s><end_of_turn>") == num_control("harmless")


@both_types
def test_think_tokens_separate_reasoning_from_actions(agent_type: str) -> None:
    chat = format_for("qwen3", agent_type)
    reply = {"react": "Thought: b\nAction: search\nAction Input: {}", "code": "```python\n1\n```"}[agent_type]
    ids = format_of("qwen3").render_completion(Message(role="assistant", content=reply, reasoning="Action: a"))
    parsed = chat.parse_completion(ids)
    assert parsed.reasoning == {"react": "Action: a\nb", "code": "Action: a"}[agent_type]
    assert len(parsed.tool_calls) == 1
    assert chat.parse_completion(chat.render_completion(parsed)).reasoning == parsed.reasoning


@given(
    st.lists(st.sampled_from(["Action:", "Action Input:", "Final Answer:", "\n", " {", "}", '"', "```python", "```"]))
)
@example(["Action:", "\n", "Action Input:", " {" * 2000])
@settings(max_examples=200, deadline=None)
def test_whatever_a_model_writes_is_read_without_an_exception(pieces: list[str]) -> None:
    for read in (read_step, read_blocks):
        message = read("".join(pieces))
        assert len(message.tool_calls) + len(message.tool_errors) <= 1


@pytest.mark.parametrize(
    "unit", ["Action:\n", "Action: a\nAction Input: {", "```python\n", "````python\n```\n", " " * 9, "`" * 9]
)
def test_long_replies_are_read_in_linear_time(unit: str) -> None:
    text = unit * (400_000 // len(unit))
    for read in (read_step, read_blocks):
        assert cpu_s(lambda read=read: read(text), 2.0) < 2.0


# Who builds formats


def test_hf_is_the_chat_format_itself_and_the_default() -> None:
    assert type(make_chat_format(tokenizer_of("plain"))) is ChatFormat
    assert type(make_chat_format(tokenizer_of("plain"), "hf")) is ChatFormat


@pytest.mark.parametrize("policy_type", ["minimind", "huggingface"])
def test_a_policy_uses_the_configured_chat_format(tmp_path, policy_type: str) -> None:
    save_tiny_model(tmp_path / "model")
    for agent_type, name in {"hf": "ChatFormat", "react": "ReactFormat", "code": "CodeFormat"}.items():
        config = tiny_config(tmp_path, agent={"type": agent_type}, policy={"type": policy_type})
        policy = make_in_process_policy(config, device="cpu")
        policy.close()
        assert type(policy.chat_format).__name__ == name


def test_a_vllm_policy_uses_the_configured_chat_format() -> None:
    policy = RemotePolicy(None, tokenizer_of("plain"), max_context=9, agent_type="react")
    assert type(policy.chat_format).__name__ == "ReactFormat"
