"""Logs of serving programs: one JSON object a line whatever is logged, what is extra as keys, secrets hidden."""

import json
import logging

import pytest

from agent_rl.telemetry.program_log import LogFormat, start_log


@pytest.fixture(autouse=True)
def _root_as_before():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_is_one_object_with_what_was_given_beside_the_text(capsys) -> None:
    start_log(LogFormat.JSON)
    logging.getLogger("here").info(
        "two\nlines of %s", "text", extra={"run": "hello", "share": float("nan"), "level": 3}
    )
    logging.getLogger("here").debug("too low")
    (row,) = logged(capsys)
    assert row.pop("time").endswith("+00:00")
    assert row == {"level": "INFO", "logger": "here", "text": "two\nlines of text", "run": "hello", "share": None}


def test_an_exception_keeps_its_traceback_and_no_secret_is_shown(capsys) -> None:
    start_log(LogFormat.JSON)
    secret = "sk-proj-0123456789abcdefghijklmnopqrstuvwxyzABCD"
    address = f"https://me:{secret}@host/path?key={secret}"
    try:
        raise ValueError(address)
    except ValueError:
        logging.getLogger("here").exception(
            "asked %s", address, extra={"api_key": secret, "header": f"Bearer {secret}"}
        )
    (row,) = logged(capsys)
    assert "test_program_log.py" in row["error"] and row["error"].count("\n") >= 2
    assert secret not in json.dumps(row)


def test_lines_for_people_have_the_time_and_the_level(capsys) -> None:
    start_log(LogFormat.TEXT)
    logging.getLogger("here").warning("look")
    assert capsys.readouterr().err.endswith(" WARNING look\n")
