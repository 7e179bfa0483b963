"""Chat templates of a stranger's model: whatever they do, and on whichever conversation, ends in one sentence."""

import os
import resource
import threading
import time

import pytest
from chat_templates import CHATML_TOKENS, FAMILIES, PLAIN, byte_level, tokenizer_of

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.agent.template_process import TemplateProcess, render
from agent_rl.errors import UserError

HOSTILE = {
    "a long range": "{% for i in range(10**9) %}x{% endfor %}",
    "ranges in ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "ranges that write": "{% for i in range(99999) %}{% for j in range(99999) %}xxxxxxxx{% endfor %}{% endfor %}",
    "a division by zero": "{{ 1/0 }}",
    "a recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "two macros": "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
    "a branching recursion": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a long text": "{{ 'x' * 10**10 }}",
    "a text of a gigabyte": "{{ 'x' * 10**9 }}",
    "a text doubled": "{% set n = namespace(t='x') %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}",
    "a list doubled": "{% set n = namespace(t=[1]) %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}",
    "a large power": "{{ 9**9**9 }}",
    "a power of powers": "{% set n = namespace(t=9) %}{% for i in range(60) %}{% set n.t = n.t * n.t %}{% endfor %}",
    "a wide format": "{{ '%999999999d' % 1 }}",
    "a wide format method": "{{ '{:999999999}'.format(1) }}",
    "a centred text": "{{ 'x' | center(10**10) }}",
    "an indent": "{{ 'x\\ny' | indent(10**9) }}",
    "a lipsum": "{{ lipsum(n=10**7) }}",
    "a batch": "{{ [1] | batch(10**9, 0) | list }}",
    "a replace": "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
    "many zeros": "{{ '0'.zfill(10**10) }}",
    "a round": "{{ 1.5 | round(10**9) }}",
    "a sort": "{{ range(99999) | list | sort | join(',') | list | sort | join | list | sort | join * 9999 }}",
    "an endless cycle": "{% set c = cycler(1) %}"
    "{% for i in range(99999) %}{% for k in range(99999) %}{{ c.next() }}{% endfor %}{% endfor %}",
    "an import": "{% include '/etc/passwd' %}",
    "an extension": "{% extends 'x' %}",
    "an unknown filter": "{{ messages | nothing }}",
    "an unknown tag": "{% nothing %}",
    "a broken template": "{% if",
    "the class of a text": "{{ ''.__class__.__mro__ }}",
    "the globals of a function": "{{ raise_exception.__globals__ }}",
    "the format of an attribute": "{{ '{0.__class__}'.format('') }}",
    "an attribute by a filter": "{{ ('' | attr('__class__')).mro() }}",
    "a change of the conversation": "{{ messages.append(1) }}",
    "a long error": "{{ raise_exception('x' * 1000000) }}",
    "an error of many lines": "{{ raise_exception('x\\n' * 1000) }}",
    "an error of nothing": "{{ raise_exception('') }}",
    "a deep expression": "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
    "a deep list": "{{ " + "[" * 20_000 + "]" * 20_000 + " }}",
    "a long sum": "{{ " + "1+" * 50_000 + "1 }}",
    "deep blocks": "{% if 1 %}" * 3_000 + "{% endif %}" * 3_000,
    "many loops": "".join(f"{{% for i{n} in range(99999) %}}" for n in range(15)) + "{% endfor %}" * 15,
    "a large template": "x" * 50_000_000,
    "nothing": "",
    "a wrong type": "{{ messages + 1 }}",
    "a strange time": "{{ strftime_now('%Y' * 1000000) }}",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_one_sentence_in_time_and_memory(name: str) -> None:
    tokenizer = byte_level(PLAIN, CHATML_TOKENS)
    tokenizer.chat_template = HOSTILE[name]
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    with pytest.raises(UserError, match=r"\A[^\n]{10,900}\Z"):
        ChatFormat(tokenizer)
    assert time.perf_counter() - started < 40.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024
    assert render("{{ 1 + 1 }}", {}) == "2"


LATER = {
    "too long": "{% if messages | length > 3 %}{{ 'x' * 10**10 }}{% endif %}" + PLAIN,
    "too slow": "{% if messages | length > 3 %}{% for i in range(99999) %}{% for j in range(99999) %}"
    "{% endfor %}{% endfor %}{% endif %}" + PLAIN,
    "writes without end": "{% if messages | length > 3 %}{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}"
    "{% endif %}" + PLAIN,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", LATER)
def test_a_template_that_is_harmless_at_first_is_bounded_later(name: str) -> None:
    chat = ChatFormat(byte_level(LATER[name], CHATML_TOKENS))
    chat.render_prompt([Message.user("a")], [])
    started = time.perf_counter()
    try:  # a template that refuses four messages may take their texts as one
        ids = chat.render_prompt([Message.user("a"), Message.user("b"), Message.user("c"), Message.user("d")], [])
        assert len(ids) < 200
    except UserError as error:
        assert "\n" not in str(error)
    assert time.perf_counter() - started < 40.0
    chat.render_prompt([Message.user("a")], [])


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_those_that_transformers_renders(family: str) -> None:
    tokenizer = tokenizer_of(family)
    conversations = [
        [{"role": "user", "content": 'a "quoted" ü \ue000'}],
        [{"role": "system", "content": "s"}, {"role": "user", "content": "  a\n"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "r"}],
    ]
    tools = [ToolSpec(name="add", description="ü <tag> & 'x'").to_openai()]
    for conversation in conversations:
        for shown in (None, tools):
            try:
                expected = tokenizer.apply_chat_template(
                    conversation, tools=shown, add_generation_prompt=True, tokenize=False
                )
            except Exception:
                continue
            arguments = {
                **tokenizer.special_tokens_map,
                "messages": conversation,
                "tools": shown,
                "documents": None,
                "add_generation_prompt": True,
            }
            assert render(tokenizer.get_chat_template(tools=shown), arguments) == expected


def test_many_threads_get_their_own_answers_while_one_template_ends_the_process() -> None:
    wrong: list[str] = []
    with TemplateProcess() as process:

        def ask(number: int) -> None:
            for turn in range(30):
                text = process.render("{{ a }}", {"a": f"{number}-{turn}"})
                if text != f"{number}-{turn}":
                    wrong.append(text)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        with pytest.raises(Exception, match="takes more than"):
            process.render(HOSTILE["ranges in ranges"], {})
        for thread in threads:
            thread.join()
    assert wrong == []


def test_an_answer_that_was_not_waited_for_is_not_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemplateProcess() as process:
        process.render("{{ 1 }}", {})
        child = process._process

        def interrupt() -> bytes:
            raise KeyboardInterrupt

        monkeypatch.setattr(child, "stdout", type("Pipe", (), {"readline": interrupt, "close": child.stdout.close}))
        with pytest.raises(KeyboardInterrupt):
            process.render("{{ 2 }}", {})
        assert process.render("{{ 3 }}", {}) == "3"


def test_a_fork_starts_a_process_of_its_own() -> None:
    assert render("{{ 1 }}", {}) == "1"
    if (child := os.fork()) == 0:
        try:
            os._exit(0 if render("{{ 2 }}", {}) == "2" else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert render("{{ 3 }}", {}) == "3"
