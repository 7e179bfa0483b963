"""What `agent-rl view` reads of a run, what its server answers and what it does not, and the command."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from view_runs import HOSTILE, make_run, record, write_step

from agent_rl.errors import ConfigError, DataError
from agent_rl.reports.view_data import RunSamples
from agent_rl.reports.view_server import ViewServer


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "tiny")


@pytest.fixture
def server(run: Path) -> Iterator[ViewServer]:
    with ViewServer(RunSamples.open(run), host="127.0.0.1", port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def fetch(server: ViewServer, target: str, *, method: str = "GET", **headers: str) -> tuple[int, str, Any]:
    """Status, kind and content; the target is sent as it is, without being tidied up."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    connection.putrequest(method, target, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    content, kind = answer.read().decode(), answer.headers["Content-Type"]
    connection.close()
    return answer.status, kind, json.loads(content) if kind == "application/json" else content


def test_the_overview_has_the_kept_steps_with_their_metrics(run: Path) -> None:
    assert RunSamples.open(run).overview() == {
        "run": "tiny",
        "samples_every": 10,
        "steps": [{"step": 1, "reward": 0.5, "success": 0.5}, {"step": 10, "reward": None, "success": 0.25}],
    }


def test_a_step_is_summaries_and_the_largest_values(run: Path) -> None:
    samples = RunSamples.open(run)
    step = samples.episodes(1)
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
        "advantage": 0.0,
    }
    lost = samples.episodes(10)
    assert lost["scales"] == {"advantage": 0.0, "log_ratio": 0.0}
    assert [(each["reward"], each["success"], each["advantage"]) for each in lost["episodes"]] == [(None, None, None)]


def test_texts_are_found_in_messages_and_calls_in_any_case(run: Path) -> None:
    samples = RunSamples.open(run)
    assert samples.search(1, "IN EPISODE 2") == [2]
    assert samples.search(1, "2+3") == [0, 1, 2, 3]
    assert samples.search(1, "token_ids") == []


def test_a_file_that_changes_is_read_again(run: Path) -> None:
    samples = RunSamples.open(run)
    assert len(samples.episodes(1)["episodes"]) == 4
    path = write_step(run, 1, [record(0)])
    os.utime(path, ns=(1, 1))
    assert len(samples.episodes(1)["episodes"]) == 1


def test_numbers_that_json_does_not_know_become_null(run: Path) -> None:
    write_step(run, 2, [record(0, reward=float("nan"))])
    assert RunSamples.open(run).episode(2, 0)["reward"] is None


@pytest.mark.parametrize(
    "content", [b"", b"no gzip", b"\x1f\x8b\x08\x00half", None], ids=["empty", "text", "torn", "other JSON"]
)
def test_a_damaged_file_is_one_sentence(run: Path, content: bytes | None) -> None:
    path = write_step(run, 3, [{"step": 3}])
    if content is not None:
        path.write_bytes(content)
    samples = RunSamples.open(run)
    if content == b"":
        assert samples.episodes(3)["episodes"] == []
    else:
        with pytest.raises(DataError, match="not a file of token samples"):
            samples.episodes(3)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no config\.yaml; give the folder of a run"):
        RunSamples.open(tmp_path)


def test_the_server_gives_the_page_and_the_data(server: ViewServer) -> None:
    status, kind, page = fetch(server, "/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert '<script src="view.js" defer></script>' in page
    assert [fetch(server, f"/{name}")[0] for name in ("view.css", "view.js", "view_tokens.js")] == [200] * 3
    assert fetch(server, "/api/run")[2]["run"] == "tiny"
    assert [each["index"] for each in fetch(server, "/api/steps/1")[2]["episodes"]] == [0, 1, 2, 3]
    assert fetch(server, "/api/steps/1/episodes/1")[2]["messages"][3]["content"] == HOSTILE
    assert fetch(server, "/api/steps/1/search?text=episode%203")[2] == [3]


def test_what_is_not_there_is_a_sentence(server: ViewServer) -> None:
    assert fetch(server, "/api/steps/7")[0::2] == (
        404,
        {"error": "step 7 of tiny has no samples; log.samples_every says which steps have"},
    )
    assert fetch(server, "/api/steps/1/episodes/4")[0::2] == (
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
        "/api/steps/../run",
        "/api/steps/1/episodes/../../run",
        "/api/steps/-1",
        "/api/steps/1e1",
        "/api/steps/١",
        "/api/steps/99999999999999999999",
        "/api/steps/1/episodes/0/",
        "/\x00",
    ],
)
def test_no_address_leads_out_of_what_is_offered(server: ViewServer, target: str) -> None:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    connection.connect()
    connection.sock.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = connection.sock.makefile("rb").read().decode()
    connection.close()
    assert answer.split()[1] in ("400", "404")
    assert "root:" not in answer
    assert "samples_every: 10" not in answer


def test_a_link_out_of_the_run_is_not_followed(run: Path, tmp_path: Path) -> None:
    secret = write_step(tmp_path / "other", 5, [record(0)])
    (run / "samples" / secret.name).symlink_to(secret)
    samples = RunSamples.open(run)
    assert [row["step"] for row in samples.overview()["steps"]] == [1, 10]
    with pytest.raises(DataError, match="step 5 of tiny has no samples"):
        samples.episodes(5)


def test_a_whole_folder_behind_a_link_is_not_followed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "tiny", samples_every=0)
    write_step(tmp_path / "other", 5, [record(0)])
    (run / "samples").symlink_to(tmp_path / "other" / "samples")
    assert RunSamples.open(run).overview()["steps"] == []


def test_a_run_may_itself_be_behind_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "newest").symlink_to(run)
    assert len(RunSamples.open(tmp_path / "newest").overview()["steps"]) == 2


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:80", 200), ("localhost", 200), ("LOCALHOST:9", 200), ("evil.example", 403), ("", 403), ("[", 403)],
)
def test_other_sites_that_point_their_name_here_get_nothing(server: ViewServer, host: str, status: int) -> None:
    assert fetch(server, "/api/run", Host=host)[0] == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_written(server: ViewServer, method: str) -> None:
    assert fetch(server, "/api/run", method=method)[0] == 501


def test_scripts_in_a_text_would_not_run(server: ViewServer) -> None:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    connection.request("GET", "/")
    headers = connection.getresponse().headers
    connection.close()
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("host", ["192.0.2.1", "no such name"])
def test_an_address_that_is_not_ours_is_refused(run: Path, host: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on --host {host} --port 0"):
        ViewServer(RunSamples.open(run), host=host, port=0)


def command(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "agent_rl.scripts.cli", "view", *args, "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )


def test_the_command_says_where_it_is_and_ends_with_ctrl_c(run: Path) -> None:
    process = command(str(run))
    try:
        line = process.stdout.readline()
        assert line.startswith(f"{run} is shown at http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_the_command_refuses_what_is_no_run(tmp_path: Path) -> None:
    process = command(str(tmp_path))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.startswith("error: ")
    assert "Traceback" not in errors
