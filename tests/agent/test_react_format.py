"""ReAct: what the model reads, what is read of its replies, and which cannot be written. Not here: its episodes."""

import pytest
from builders import call
from chat_templates import format_of, text_of, tokenizer_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_rl.agent.chat_format import make_chat_format
from agent_rl.agent.messages import Message, ToolCall, ToolSpec
from agent_rl.agent.react_format import read_step, write_step
from agent_rl.errors import UserError

SEARCH = ToolSpec(name="search", description="Finds passages", parameters={"type": "object", "properties": {}})
REACT = make_chat_format(tokenizer_of("qwen2.5"), "react")


def calls_of(message: Message) -> list[tuple[str, dict]]:
    return [(item.name, item.arguments) for item in message.tool_calls]


def test_a_react_prompt_explains_the_rules_and_lists_the_tools_behind_the_system_message() -> None:
    chat = REACT
    ids = chat.render_prompt([Message.system("Be brief."), Message.user("Who?")], [SEARCH])
    assert text_of("qwen2.5", ids) == (
        "<|im_start|>system\nBe brief.\n\n"
        "Think step by step. In every reply, either use one tool:\n\n"
        "Thought: what you think\nAction: name of the tool\nAction Input: its arguments, a JSON object\n\n"
        "and stop there, the result follows as an Observation; or, when you know it, give the answer:\n\n"
        "Thought: what you think\nFinal Answer: the answer\n\n"
        "Where Answer: is asked for, write Final Answer: instead.\n\n"
        'Tools:\n{"name": "search", "description": "Finds passages", '
        '"parameters": {"type": "object", "properties": {}}}<|im_end|>\n'
        "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_without_a_system_message_the_rules_are_one_and_without_tools_there_are_none() -> None:
    chat, question = make_chat_format(tokenizer_of("plain"), "react"), Message.user("Who?")
    assert text_of("plain", chat.render_prompt([question], [SEARCH])).startswith(
        "<|im_start|>system\nThink step by step"
    )
    assert chat.render_prompt([question]) == format_of("plain").render_prompt([question])


def test_a_react_action_is_a_call_and_the_thought_is_reasoning() -> None:
    step = read_step('Thought: I look it up.\nAction: search\nAction Input: {"query": "Größe"}')
    assert (step.reasoning, step.content, calls_of(step)) == ("I look it up.", "", [("search", {"query": "Größe"})])


def test_a_final_answer_is_bare_content_and_may_have_lines() -> None:
    step = read_step("Thought: It is there.\nFinal Answer: Paris\nAction: none")
    assert (step.reasoning, step.content, step.tool_calls) == ("It is there.", "Paris\nAction: none", ())


def test_a_reply_without_action_or_final_answer_is_the_answer_as_it_stands() -> None:
    assert read_step("It is Paris. Action: none") == Message.assistant("It is Paris. Action: none")


@pytest.mark.parametrize(
    "invented",
    ['\nObservation: Paris\nThought: So.\nAction: submit\nAction Input: {"a": 1}', "\nFinal Answer: Rome", " and more"],
)
def test_what_follows_the_first_action_input_is_not_acted_on(invented: str) -> None:
    step = read_step(f'Action: search\nAction Input: {{"query": "x"}}{invented}')
    assert (step.content, step.tool_errors, calls_of(step)) == ("", (), [("search", {"query": "x"})])


def test_arguments_may_have_several_lines_and_a_fence() -> None:
    for arguments in ('\n{"query":\n "x"}', '```json\n{"query": "x"}\n```', ' ```\n{"query": "x"}'):
        step = read_step(f"  Action:  search \n  Action Input:{arguments}")
        assert calls_of(step) == [("search", {"query": "x"})]


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ('Action: search\nAction Input: {"query": "x"', "unclosed", "no } closes it."),
        ('Action: search\nAction Input: {"query": x}', "bad_json", "The call is not valid JSON"),
        ("Action: search\nAction Input: capital of France", "not_an_object", "must be a JSON object, got other text."),
        ('Action: search\nAction Input: ["x"]', "not_an_object", "must be a JSON object"),
        ("Action: search\nAction Input:\n", "unclosed", "nothing follows Action Input:"),
        ("Action: search\nObservation: x", "unclosed", "no Action Input: follows."),
        ('Action: a\nAction: search\nAction Input: {"a": 1}', "unclosed", "no Action Input: follows."),
        ("Action:\nAction Input: {}", "no_name", "No name of a tool stands behind Action:"),
        ("Action Input: {}", "no_name", "stands in front of Action Input:"),
    ],
)
def test_a_broken_action_is_a_sentence_that_the_model_can_act_on(text: str, kind: str, words: str) -> None:
    step = read_step(f"Thought: Hm.\n{text}")
    assert (step.reasoning, step.content, step.tool_calls) == ("Hm.", "", ())
    assert [error.kind for error in step.tool_errors] == [kind]
    assert words in step.tool_errors[0].message
    if kind != "bad_json":
        assert step.tool_errors[0].message.endswith('Write Action: tool_name\nAction Input: {"argument": ...}')


def test_text_beside_a_call_is_written_as_a_thought() -> None:
    message = Message.assistant("I look it up.", (call("search", query="ü"),))
    assert write_step(message) == 'Thought: I look it up.\nAction: search\nAction Input: {"query": "ü"}'


def test_an_answer_that_has_its_marker_already_gets_no_second_one() -> None:
    assert write_step(Message.assistant("3 + 4 is 7.\nFinal Answer: 7")) == "Thought: 3 + 4 is 7.\nFinal Answer: 7"
    assert write_step(Message.assistant("7")) == "Final Answer: 7"


def test_react_writes_one_call_a_reply() -> None:
    with pytest.raises(UserError, match=r"a reply holds 2 calls \(search, submit\), but ReAct makes one"):
        write_step(Message.assistant("", (call("search"), call("submit"))))


@pytest.mark.parametrize(
    "text",
    [
        "**Action:** search\n**Action Input:** {}",
        "**Action**: `search`\n**Action Input**: `{}`",
        "action: search\naction input: {}",
        "ACTION : 'search'\nAction Input : {}",
        "## Action: **search**\n> Action Input: ```json\n{}\n```",
        "**Action: search**\n**Action Input:**\n{}",
    ],
)
def test_markers_are_read_as_models_write_them(text: str) -> None:
    step = read_step(f"**Thought:** Hm.\n{text}\nObservation: x")
    assert (step.reasoning, step.content, step.tool_errors, calls_of(step)) == ("Hm.", "", (), [("search", {})])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("**Final Answer:** 7", "7"),
        ("**Final Answer: 7**", "7"),
        ("final answer : **7**", "**7**"),
        ("# Final Answer: C#", "C#"),
        ("Action: None\nFinal Answer: 7", "7"),
        ("Action: `none`\nAction Input: {}\nFinal Answer: 7", "7"),
        ("Action: None\nAction Input: None\n**Final Answer:** 7", "7"),
    ],
)
def test_answers_are_read_as_models_write_them(text: str, answer: str) -> None:
    assert read_step(f"Thought: Hm.\n{text}") == Message(role="assistant", content=answer, reasoning="Hm.")


def test_an_action_of_another_name_in_front_of_an_answer_is_not_finished() -> None:
    [error] = read_step("Action: search\nFinal Answer: 7").tool_errors
    assert error.kind == "unclosed"
    assert calls_of(read_step("Action: None\nAction Input: {}")) == [("None", {})]


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (
            Message(
                role="assistant",
                content="",
                reasoning="Hm, maybe\nAction: submit\nAction Input: {}",
                tool_calls=(ToolCall(name="search", arguments={}),),
            ),
            "is read as a call of 'submit', where a call of 'search' was expected",
        ),
        (
            Message.assistant("I plan.\nFinal Answer: 7", (ToolCall(name="search", arguments={}),)),
            "is read as the text '7\\nAction: search\\nAction Input: {}', where a call of 'search' was expected",
        ),
        (
            Message(role="assistant", content="7", reasoning="So\nAction: look"),
            "is read as a broken call, where the text",
        ),
        (
            Message.assistant("", (ToolCall(name="`search`", arguments={}),)),
            "is read as a call of 'search', where a call",
        ),
    ],
)
def test_a_reply_that_would_be_read_as_another_is_refused(message: Message, read: str) -> None:
    with pytest.raises(UserError, match="cannot be written so that it is read as it was meant") as caught:
        REACT.render_completion(message)
    assert read in str(caught.value)


@given(
    st.lists(
        st.sampled_from(
            ["Thought: a", "**Action:** b", "Action: None", "Action Input: {}", "Final Answer:", "7", " ", "\n", "**"]
        )
    ).map("".join)
)
@example("Thought: Hm.\nFinal Answer:")
@example("Final Answer: 7\nAction: x\nFinal Answer: 8")
@settings(max_examples=300, deadline=None)
def test_whatever_was_read_of_a_model_can_be_written(text: str) -> None:
    step = read_step(text)
    assert REACT.render_completion(step)[-1] == REACT.stop_token_ids[0]


def test_a_thought_without_anything_is_one_with_an_empty_answer() -> None:
    thought = Message(role="assistant", content="", reasoning="Hm.")
    assert write_step(thought) == "Thought: Hm.\nFinal Answer:"
    assert read_step(write_step(thought)) == thought
    assert write_step(Message.assistant("")) == ""


def test_a_reply_that_could_not_be_read_is_shown_by_what_is_left_of_it() -> None:
    chat, broken = REACT, read_step("Thought: Hm.\nAction: search")
    assert text_of("qwen2.5", chat.render_completion(broken)) == "Thought: Hm.<|im_end|>"


def test_results_are_observations_in_one_user_message() -> None:
    ids = REACT.render_env_messages([Message.tool("7"), Message.tool("8"), Message.user("Go")])
    assert text_of("qwen2.5", ids) == (
        "\n<|im_start|>user\nObservation: 7\nObservation: 8<|im_end|>\n"
        "<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n"
    )
