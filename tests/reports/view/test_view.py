"""What `agent-rl view` reads of a run, what its server answers and what it does not, and the command."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from view_runs import HOSTILE, make_run, record, sample, write_step
from waiting import wait_for

from agent_rl.errors import ConfigError, DataError
from agent_rl.reports.view.data import RunSamples
from agent_rl.reports.view.runs import ViewedRuns
from agent_rl.reports.view.server import SCRIPTS, ViewServer


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "tiny")


@pytest.fixture
def server(run: Path) -> Iterator[ViewServer]:
    with ViewServer(ViewedRuns([RunSamples(run)]), host="127.0.0.1", port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def fetch(server: ViewServer, target: str, *, method: str = "GET", **headers: str) -> tuple[int, str, Any]:
    """Status, kind and content of what stands behind the server's key."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    connection.putrequest(method, f"/{server.key}{target}", skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    content, kind = answer.read().decode(), answer.headers["Content-Type"]
    connection.close()
    return answer.status, kind, json.loads(content) if kind == "application/json" else content


def test_the_overview_has_the_saved_steps_with_their_metrics(run: Path) -> None:
    assert RunSamples(run).overview() == {
        "run": "tiny",
        "samples_every": 10,
        "sets": [
            {"id": "step-1", "step": 1, "temperature": None, "reward": 0.5, "success": 0.5},
            {"id": "step-10", "step": 10, "temperature": None, "reward": None, "success": 0.25},
        ],
    }


def test_lines_that_are_no_metrics_of_a_step_are_left_out(run: Path) -> None:
    lines = ["[1]", '"reward/mean"', '{"reward/mean": 9}', '{"step": "1", "reward/mean": 9}', "[" * 100_000, "\xff"]
    with (run / "metrics.jsonl").open("a") as file:
        file.write("\n" + "\n".join(lines) + "\n")
    assert RunSamples(run).overview()["sets"][0] == {
        "id": "step-1",
        "step": 1,
        "temperature": None,
        "reward": 0.5,
        "success": 0.5,
    }


def test_a_step_is_summaries_and_the_ends_of_scales(run: Path) -> None:
    samples = RunSamples(run)
    step = samples.episodes("step-1")
    assert step["scales"] == {"advantage": 1.0, "log_ratio": pytest.approx(0.2)}
    assert step["episodes"][3] == {
        "index": 3,
        "task_id": "task-1",
        "group_id": "1/1",
        "family": "prices",
        "level": 2,
        "difficulty": None,
        "reward": 0.25,
        "stop_reason": "max_tokens",
        "num_tokens": 3,
        "duration_s": 0.5,
        "success": False,
        "flags": ["reads_tests"],
        "greedy": False,
        "number": 1,
        "advantage": 0.0,
    }
    lost = samples.episodes("step-10")
    assert lost["scales"] == {"advantage": 0.0, "log_ratio": 0.0}
    assert [(each["reward"], each["success"], each["advantage"]) for each in lost["episodes"]] == [(None, None, None)]


def test_means_and_scales_are_of_tokens_that_counted(run: Path) -> None:
    cut_off = sample(loss_mask=[0] * 6, advantages=[None, None, 9.0, 9.0, None, 9.0])
    half = sample(loss_mask=[0, 0, 0, 1, 0, 1], trainer_logprobs=[None, None, -9.0, -2.75, None, "nan"])
    write_step(run, 2, [record(0, samples=[cut_off]), record(1, samples=[half])])
    step = RunSamples(run).episodes("step-2")
    assert [each["advantage"] for each in step["episodes"]] == [None, -0.25]  # (0.5 - 1) / 2
    assert step["scales"] == {"advantage": 1.0, "log_ratio": 0.25}  # -2.75 + 2.5; the other is not finite


def test_a_scale_ends_at_what_one_in_a_hundred_exceeds(run: Path) -> None:
    columns = {"sampling_logprobs": [-1.0] * 200, "trainer_logprobs": [-1.0] * 200, "segments": []}
    values = [0.5] * 198 + [70.0, -80.0]
    write_step(run, 2, [record(0, samples=[columns | {"loss_mask": [1] * 200, "advantages": values}])])
    write_step(run, 3, [record(0, samples=[columns | {"loss_mask": [1] * 200, "advantages": [0.0] * 199 + [-2.0]}])])
    samples = RunSamples(run)
    assert samples.episodes("step-2")["scales"]["advantage"] == 0.5
    assert samples.episodes("step-3")["scales"]["advantage"] == 2.0  # of nothing but one value


@pytest.mark.parametrize(
    ("parts", "success"), [({"success": True}, True), ({"success": 0.0}, False), ({"success": float("nan")}, None)]
)
def test_success_may_be_unknown(run: Path, parts: dict[str, Any], success: bool | None) -> None:
    write_step(run, 2, [record(0, reward_parts=parts)])
    assert RunSamples(run).episodes("step-2")["episodes"][0]["success"] is success


def test_whatever_is_shown_of_an_episode_is_found(run: Path) -> None:
    reply = {"role": "assistant", "content": "x", "reasoning": "Hmm", "info": {"note": {"list": ['"quoted"', 17]}}}
    labels = {"family": 4711, "flags": ["reads_tests"], "error": "the sandbox is gone", "stop_reason": "env_error"}
    write_step(run, 2, [record(0), record(1, messages=[reply], **labels)])
    samples = RunSamples(run)
    for text in ("hmm", '"QUOTED"', "17", "4711", "reads_tests", "sandbox is", "env_error"):
        assert samples.search("step-2", text) == [1], text
    assert samples.search("step-2", "task-0") == [0, 1]
    assert samples.search("step-2", "\ud83d") == []


def test_texts_are_found_in_messages_and_calls_in_any_case(run: Path) -> None:
    samples = RunSamples(run)
    assert samples.search("step-1", "IN EPISODE 2") == [2]
    assert samples.search("step-1", "2+3") == [0, 1, 2, 3]
    assert samples.search("step-1", "token_ids") == []


def test_a_file_that_changes_is_read_again(run: Path) -> None:
    samples = RunSamples(run)
    assert len(samples.episodes("step-1")["episodes"]) == 4
    path = write_step(run, 1, [record(0)])
    os.utime(path, ns=(1, 1))
    assert len(samples.episodes("step-1")["episodes"]) == 1


def test_numbers_that_json_does_not_know_become_null(run: Path) -> None:
    write_step(run, 2, [record(0, reward=float("nan"))])
    assert RunSamples(run).episode("step-2", 0)["reward"] is None


@pytest.mark.parametrize(
    "content", [b"", b"no gzip", b"\x1f\x8b\x08\x00half", None], ids=["empty", "text", "torn", "other JSON"]
)
def test_a_damaged_file_is_one_sentence(run: Path, content: bytes | None) -> None:
    path = write_step(run, 3, [{"step": 3}])
    if content is not None:
        path.write_bytes(content)
    samples = RunSamples(run)
    with pytest.raises(DataError, match="holds no episode" if content == b"" else "not a file of token samples"):
        samples.episodes("step-3")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no config\.yaml; give the folder of a run"):
        RunSamples(tmp_path)


def test_the_server_gives_the_page_and_the_data(server: ViewServer) -> None:
    status, kind, page = fetch(server, "/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert '<script src="view.js" defer></script>' in page
    for name in ("view.css", *SCRIPTS):
        assert name in page
        assert fetch(server, f"/{name}")[0] == 200
    assert fetch(server, "/api/runs")[2][0]["run"] == "tiny"
    assert [each["index"] for each in fetch(server, "/api/runs/0/step-1")[2]["episodes"]] == [0, 1, 2, 3]
    assert fetch(server, "/api/runs/0/step-1/episodes/1")[2]["messages"][3]["content"] == HOSTILE
    assert fetch(server, "/api/runs/0/step-1/search?text=episode%203")[2] == [3]


def test_what_is_not_there_is_a_sentence(server: ViewServer) -> None:
    assert fetch(server, "/api/runs/0/step-7")[0::2] == (
        404,
        {"error": "step 7 of tiny has no samples; log.samples_every says which steps have"},
    )
    assert fetch(server, "/api/runs/0/step-1/episodes/4")[0::2] == (
        404,
        {"error": "step 1 has no episode 4: it has 4, counted from 0"},
    )


@pytest.mark.parametrize(
    "target",
    [
        "/../config.yaml",
        "/static/../../../secret",
        "/%2e%2e/config.yaml",
        "/..%2fconfig.yaml",
        "/%2e%2e%2f%2e%2e%2fetc/passwd",
        "//etc/passwd",
        "/etc/passwd",
        "http://127.0.0.1/etc/passwd",
        "http://[",
        "/config.yaml",
        "/view.html",
        "/samples/step_00001.jsonl.gz",
        "/api/runs/0/../run",
        "/api/runs/0/step-1/episodes/../../run",
        "/api/runs/0/step--1",
        "/api/runs/0/step-1e1",
        "/api/runs/0/step-%D9%A1",
        "/api/runs/0/step-99999999999999999999",
        "/api/runs/0/step-1/episodes/0/",
        "/api/runs/1/step-1",
        "/api/runs/-1/step-1",
        "/api/runs/99999999999999999999/step-1",
        "/api/runs/0/..",
        "/api/runs/0/%2e%2e",
        "/api/runs/0/samples",
        "/\x00",
    ],
)
def test_no_address_leads_out_of_what_is_offered(server: ViewServer, target: str) -> None:
    for whole in (target, f"/{server.key}/{target.removeprefix('/')}"):
        connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
        connection.connect()
        connection.sock.sendall(f"GET {whole} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = connection.sock.makefile("rb").read().decode()
        connection.close()
        assert answer.split()[1] in ("400", "404" if whole != target else "403")
        assert "root:" not in answer
        assert "samples_every: 10" not in answer


@pytest.mark.parametrize("key", ["", "/", "/view.js", "/api/runs", "/x/api/runs", "/é/", "/{}", "/{}!/api/runs"])
def test_without_the_key_there_is_nothing(server: ViewServer, key: str) -> None:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    connection.connect()
    target = key.format(server.key[:-1])
    connection.sock.sendall(f"GET {target or '*'} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert connection.sock.makefile("rb").readline().split()[1] == b"403"
    connection.close()


def test_a_defect_is_an_answer_too(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Broken(RunSamples):
        def overview(self) -> dict[str, Any]:
            raise KeyError("step")

    with ViewServer(ViewedRuns([Broken(run)]), host="127.0.0.1", port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        status, _, answer = fetch(server, "/api/runs")
        server.shutdown()
        thread.join()
    assert (status, answer) == (
        500,
        {"error": "agent-rl view failed at this (KeyError: 'step'); its terminal says more"},
    )
    assert "Traceback" in capfd.readouterr().err


def test_a_link_out_of_the_run_is_not_followed(run: Path, tmp_path: Path) -> None:
    secret = write_step(tmp_path / "other", 5, [record(0)])
    (run / "samples" / secret.name).symlink_to(secret)
    samples = RunSamples(run)
    assert [row["step"] for row in samples.overview()["sets"]] == [1, 10]
    with pytest.raises(DataError, match="step 5 of tiny has no samples"):
        samples.episodes("step-5")


def test_a_whole_folder_behind_a_link_is_not_followed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "tiny", samples_every=0)
    write_step(tmp_path / "other", 5, [record(0)])
    (run / "samples").symlink_to(tmp_path / "other" / "samples")
    assert RunSamples(run).overview()["sets"] == []


def test_a_run_may_itself_be_behind_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "newest").symlink_to(run)
    assert len(RunSamples(tmp_path / "newest").overview()["sets"]) == 2


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:80", 200),
        ("192.168.0.7:80", 200),
        ("[::1]:80", 200),
        ("localhost", 200),
        ("LOCALHOST:9", 200),
        (f"{socket.gethostname()}:80", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_other_sites_that_point_their_name_here_get_nothing(server: ViewServer, host: str, status: int) -> None:
    assert fetch(server, "/api/runs", Host=host)[0] == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_written(server: ViewServer, method: str) -> None:
    assert fetch(server, "/api/runs", method=method)[0] == 501


def test_scripts_in_a_text_would_not_run(server: ViewServer) -> None:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    connection.request("GET", f"/{server.key}/")
    headers = connection.getresponse().headers
    connection.close()
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize("host", ["192.0.2.1", "no such name"])
def test_an_address_that_is_not_ours_is_refused(run: Path, host: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on --host {host} --port 0"):
        ViewServer(ViewedRuns([RunSamples(run)]), host=host, port=0)


def command(*args: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "agent_rl.scripts.cli", "view", *args],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def test_the_command_prints_its_address_and_ends_with_ctrl_c(run: Path) -> None:
    process = command(str(run), "--no-browser")
    try:
        line = process.stdout.readline()
        assert line.startswith(f"{run} is shown at http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_browser_that_holds_up_its_caller_gets_the_page(run: Path, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(
        f"#!{sys.executable}\nimport re, sys, urllib.request\n"
        "assert not re.search('http|[0-9a-f]{16}|[A-Za-z0-9_-]{20}', sys.argv[1].partition('agent_rl_view_')[2])\n"
        "first = urllib.request.urlopen(sys.argv[1], timeout=20).read().decode()\n"
        "page = urllib.request.urlopen(re.search('url=([^\"]+)', first)[1], timeout=20).read()\n"
        f"open({str(tmp_path / 'seen')!r}, 'wb').write(page)\n"
    )
    browser.chmod(0o700)
    process = command(str(run), BROWSER=str(browser))
    try:
        wait_for(lambda: (tmp_path / "seen").exists() and "view.js" in (tmp_path / "seen").read_text())
    finally:
        process.kill()
        process.communicate()


def test_the_command_refuses_what_is_no_run(tmp_path: Path) -> None:
    process = command(str(tmp_path), "--no-browser")
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 2
    assert errors.startswith("error: ")
    assert "Traceback" not in errors
