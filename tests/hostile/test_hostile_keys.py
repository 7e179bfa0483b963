"""Keys in a configuration: in the run's own file, which only its owner reads, and nowhere else."""

import html
import stat
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from commands import one_line_error, run_here
from cpu_time import cpu_s
from fakes import tiny_config

from agent_rl.config import MCPServerConfig, load_config
from agent_rl.config.tools import SearchToolConfig
from agent_rl.core import run_output
from agent_rl.core.run_folder import RunFolder
from agent_rl.core.run_output import RunOutput
from agent_rl.errors import ConfigError, SandboxError, UserError
from agent_rl.redacted import redacted, secrets_in, shown
from agent_rl.sandbox.guest.tiers import SETTINGS
from agent_rl.sandbox.limits import Status
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.scripts.commands import view
from agent_rl.telemetry.files import write_text
from agent_rl.tools.mcp.tools import MCPConnections
from agent_rl.tools.web_search_tool import WebSearch

KEY = "sk-4417-very-secret"
TOOLS = {
    "use": ["search"],
    "search": {
        "provider": "own",
        "endpoint": f"https://me:{KEY}@host/s?key={KEY}",
        "default_params": {"token": KEY, "nested": {"deep": KEY}},
    },
    "mcp": [
        {"url": f"https://{KEY}@host/mcp?key={KEY}#{KEY}"},
        {"command": ["python", "s.py", "--api-key", KEY, f"--token={KEY}", f"API_KEY={KEY}"], "sandbox": False},
    ],
}


def test_trackers_get_no_key_and_the_runs_file_is_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def spy(_names: Any, **options: Any) -> list[Any]:
        given.append(options["config"])
        return []

    monkeypatch.setattr(run_output, "open_trackers", spy)
    config = tiny_config(tmp_path, tools=TOOLS)
    path = config.run.output_dir / config.run.name / "config.yaml"
    path.parent.mkdir(parents=True)
    for name in ("config.yaml.partial",):  # what an earlier version may have left
        (path.parent / name).write_text("x")
        (path.parent / name).chmod(0o644)
    run = RunFolder.open(config)
    run.begin(config, {}, step=0)
    with RunOutput(run, config, step=0, is_main=True):
        pass
    assert len(given) == 1 and KEY not in str(given[0])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_config(path).tools == config.tools


def test_a_private_file_is_private_from_its_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_text(path, "x", is_private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    write_text(path, "y", is_private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "wrong",
    [
        f"tools.search.endpoint=[https://me:{KEY}@host]",
        f"tools.search.default_params=[{KEY}]",
        f"tools.mcp=[{{command: [a, --api-key, {KEY}], url: 'https://h/?key={KEY}'}}]",
        f"tools.mcp=[{{url: 'https://h/?key={KEY}', timeout_s: x, api_key: {KEY}}}]",
        f"env.options.api_key={KEY}",
        f"tools.search.api_key={KEY}",
        f"tools.search.password.x=[{KEY}",
        f"tools.search.headers.X-Whatever={KEY}",
        f"env.options.bearerToken={KEY}",
        f"tools.mcp=[{{command: [env, 'TAVILY={KEY}', x], url: 'https://h/{KEY}'}}]",
        f"tools.mcp=[{{command: [x, '--header', 'Authorization: Bearer {KEY}', '-k', {KEY}], timeout_s: x}}]",
    ],
)
def test_no_complaint_about_settings_repeats_a_key(wrong: str, tmp_path: Path) -> None:
    done = run_here("train", "--config", "configs/nat_grpo.yaml", f"run.output_dir={tmp_path}", "run.name=x", wrong)
    assert KEY not in one_line_error(done)


# ---------------------------------------------------------------- the door

SPELLINGS: list[Any] = [
    {"command": ["server", "--header", f"Authorization: Bearer {KEY}"]},
    {"command": ["server", "-H", f"X-Whatever: {KEY}"]},
    {"command": ["server", f"--header=X-API-Key:{KEY}"]},
    {"command": ["server", f"X-API-Key: {KEY}"]},
    {"command": ["server", "-k", KEY]},
    {"command": ["server", "-k", "hunter"]},
    {"command": ["server", KEY]},
    {"command": ["server", "--model", "ghp_4f9aK2mQ81xZ"]},
    {"command": ["server", "3f786850e387550fdab836ed7e6dc881de23001b"]},
    {"command": ["env", f"TAVILY={KEY}", "server"]},
    {"command": ["env", f"API_KEY={KEY}", "python", "x.py"]},
    {"command": ["env", "HF_TOKEN=hunter", "python", "x.py"]},
    {"command": ["sh", "-c", f"API_KEY={KEY} server"]},
    {"command": ["sh", "-c", f"exec server --token {KEY} --fast"]},
    {"command": ["sh", "-c", "exec server --token=hunter"]},
    {"command": ["sh", "-c", f"curl -H 'Authorization: Bearer {KEY}' host"]},
    {"command": ["server", "--apikey", "hunter"]},
    {"command": ["server", "--access-token", "hunter"]},
    {"command": ["server", "--accessToken", "hunter"]},
    {"command": ["server", "--api_key:", "hunter"]},
    {"command": ["server", "--api-key=hunter"]},
    {"command": ["server", "--config", '{"api_key": "hunter"}']},
    {"command": ["psql", "postgres://me:hunter@h/db"]},
    {"command": ["psql", "postgres://me:hun/ter#@h/db"]},
    {"command": ["psql", "me:hunter@h/db"]},
    {"url": f"https://host/mcp/{KEY}/sse"},
    {"url": "https://host/mcp/0b5c1f9a7e3d4482/sse"},
    {"url": f"https://host/{KEY.replace('-', '%2D')}"},
    {"url": f"https://host/?x={KEY}"},
    {"url": f"https://host/#{KEY}"},
    {"url": f"https://{KEY}@host/"},
    {"text": f"see https://{KEY}@host/, or https://other/"},
    {"headers": {"Authorization": f"Bearer {KEY}"}},
    {"headers": {"X-Whatever": "hunter"}},
    {"extra_headers": {"X-Whatever": "hunter"}},
    {"headers": [["X-Whatever", KEY]]},
    {"env": {"FOO": "hunter"}},
    {"cookies": {"session": "hunter"}},
    {"options": [["api_key", "hunter"]]},
    {"options": {"api_key": {"nested": ["hunter"]}}},
    {"hfToken": "hunter"},
    {"HFToken": "hunter"},
    {"apiKey": "hunter"},
    {"client_secret": "hunter"},
    {"bearerToken": "hunter"},
    {"password": "hunter"},
    {"password": 73517355},
    {"x": "jdbc:foo:user=me;password=hunter"},
    {"x": "Authorization: Bearer hunter"},
    {"x": '{"client_secret": "hunter"}'},
    {"x": "AccountKey=hunter;Endpoint=a"},
]


@pytest.mark.parametrize("value", SPELLINGS, ids=str)
def test_no_spelling_of_a_key_comes_through_the_door(value: Any) -> None:
    said = str(redacted(value))
    for secret in (KEY, KEY.replace("-", "%2D"), "hunter", "hun/ter", "ghp_", "3f786850", "0b5c1f9a", "73517355"):
        assert secret not in said
    assert redacted(redacted(value)) == redacted(value)


EVERYDAY: list[Any] = [
    ["python", "servers/orders/server.py", "--port", "8000", "-m", "x", "--depth", "advanced"],
    ["uvx", "mcp-server-2024-11-05"],
    {"env": {"name": "nat", "options": {"key_column": "answer", "max_tokens": 7}}},
    {"columns": ["key", "value"]},
    {"url": "https://huggingface.co/datasets/a/resolve/main/train-00000-of-00001.parquet"},
    {"url": "http://127.0.0.1:8000/mcp"},
    {"model": {"path": "HuggingFaceTB/SmolLM2-135M-Instruct", "dtype": "bfloat16"}},
    {"eos_token_id": 151645, "pad_token": 0, "tokens": "a", "keys": "b"},
    {"reward": "a=1, b=2", "text": "the bearer, and: the key is under the mat"},
    {"api_key_env": "MY_KEY"},
]


@pytest.mark.parametrize("value", EVERYDAY, ids=str)
def test_everyday_settings_come_through_as_they_are(value: Any) -> None:
    assert redacted(value) == value
    assert secrets_in(value) == []


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (["env", f"API_KEY={KEY}", "python", "x.py"], "env API_KEY=(not shown) python x.py"),
        (f"ftp://me:{KEY}@host/s?key={KEY}", "ftp://host/s?(not shown)"),
        (f"me:{KEY}@host/s?key={KEY}", "host/s?(not shown)"),
        (f"https://me:{KEY}@ho st/", "https://ho st/"),
        ("host/search", "host/search"),
    ],
)
def test_commands_and_addresses_in_messages(given: Any, seen: str) -> None:
    assert shown(given) == seen


@pytest.mark.parametrize("unit", ["a", "a://", "a@", "a=", '"a":', "A: ", "-k ", "bearer ", "sk-1", "a.", "/1a", "-"])
def test_a_long_text_is_looked_through_in_time(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    assert cpu_s(lambda: redacted({"a": text, "b": [text]}), 2.0) < 2.0


def complaint(make: Callable[[], object]) -> str:
    with pytest.raises((UserError, ConfigError)) as caught:
        make()
    return str(caught.value)


def test_no_complaint_about_a_server_or_an_address_repeats_a_key() -> None:
    argv = "import sys; sys.exit(str(sys.argv))"
    servers = [
        {"command": ("npx", "server", "--api-key", KEY)},
        {"command": ("env", f"API_KEY={KEY}", "python", "x.py")},
        {"command": (KEY, "x")},
        {"command": ("python", KEY)},
        {"command": ("env", f"FOO={KEY}", "x"), "sandbox": False},
        {"command": (sys.executable, "-c", argv, "-k", KEY), "sandbox": False, "timeout_s": 10.0},
        {"command": (sys.executable, "-c", argv, "--header", f"A: Bearer {KEY}"), "sandbox": False, "timeout_s": 10.0},
        {"url": f"ftp://me:{KEY}@127.0.0.1:9/{KEY}?key={KEY}"},
        {"url": f"http://127.0.0.1:9/mcp/{KEY}"},
    ]
    for options in servers:
        said = complaint(lambda options=options: MCPConnections([MCPServerConfig(**options)]).__enter__())
        assert KEY not in said and said.count("\n") == 0, said
    for address in (f"ftp://me:{KEY}@host/?key={KEY}", f"https://me:{KEY}@ho st/", f"me:{KEY}@host", f"x/?key={KEY}"):
        said = complaint(lambda address=address: WebSearch(SearchToolConfig(provider="own", endpoint=address)))
        assert KEY not in said, said


# ---------------------------------------------------------------- what lies beside an interpreter, and a browser


def test_settings_with_keys_beside_the_interpreter_are_empty_in_the_sandbox() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="agent_rl_venv_") as name:
        folder, jobs = Path(name) / "venv", Path(name) / "jobs" / "jobs.py"
        folder.parent.chmod(0o755)
        venv.create(folder, symlinks=True)
        for settings in SETTINGS:
            (folder / settings).write_text(KEY)
            (folder / settings).chmod(0o644)
        jobs.parent.mkdir()
        jobs.write_text(
            "import os, sys\n"
            "def read(request, workdir):\n"
            "    return {name: text(os.path.join(sys.prefix, name)) for name in request['names']}\n"
            "def text(path):\n"
            "    try:\n"
            "        return open(path).read()\n"
            "    except PermissionError:\n"
            "        return ''\n"
            "JOBS = {'read': read}\n"
        )
        try:
            sandbox = Sandbox.open(python=folder / "bin" / "python", jobs=[str(jobs)], tier="namespaces")
        except SandboxError as error:
            pytest.skip(f"namespaces are not available here: {error}")
        with sandbox:
            names = [*SETTINGS, "pyvenv.cfg"]
            job = sandbox.call("read", names=names)
            assert job.status is Status.OK, job.error
            assert job.result["pyvenv.cfg"] and [job.result[each] for each in SETTINGS] == [""] * len(SETTINGS)


def test_the_viewers_key_is_in_no_argument_and_in_no_file_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def spy(address: str) -> bool:
        path = Path(unquote(urlsplit(address).path))
        opened.append(address)
        assert f"?key={KEY}" in html.unescape(path.read_text())
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        return True

    monkeypatch.setattr(view.webbrowser, "open", spy)
    monkeypatch.setattr(view, "_TO_READ_S", 0.0)
    view._open_browser(f"http://127.0.0.1:8000/?key={KEY}")
    (address,) = opened
    assert address.startswith("file://") and KEY not in address
    assert not Path(unquote(urlsplit(address).path)).exists()


def test_a_browser_of_the_user_gets_no_key_among_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "arguments"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {seen}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setattr(view.webbrowser, "_tryorder", None)
    monkeypatch.setattr(view, "_TO_READ_S", 0.2)
    view._open_browser(f"http://127.0.0.1:8000/?key={KEY}")
    assert "open.html" in seen.read_text() and KEY not in seen.read_text()
