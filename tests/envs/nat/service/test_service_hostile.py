"""Hostile input: it changes nothing, and nothing is read that should not be."""

import contextlib
import io
import json
import os
import re
import socket
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nat_projects import row, spec_of
from services import Client, reference_writer, scripted_creator, service_of, serving

from agent_rl.endpoint import app as endpoint_app
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit

SPEC = spec_of("unit_converter", 1)
ROW = row(SPEC)
EVIL = '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>'


@pytest.fixture(scope="module")
def client(nat_toolkit: NatToolkit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(nat_toolkit, tmp_path_factory.mktemp("service"), reference_writer(SPEC)) as client:
        yield client


@pytest.fixture(scope="module")
def job(client: Client) -> dict[str, Any]:
    return client.made(spec=ROW, request=EVIL)


def tree(client: Client) -> list[str]:
    """Every file of the store but the database's own."""
    folder = client.service.store.folder
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.name.startswith("store."))


def raw(client: Client, data: bytes) -> bytes:
    """What comes back for these bytes: head and body."""
    host, port = client.service.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20.0) as connection:
        with contextlib.suppress(ConnectionError):  # the server may have answered and left in the middle
            connection.sendall(data)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65536):
                answer += piece
                head, end, body = answer.partition(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                if end and len(body) >= int(length.group(1) if length else 0):
                    break
    return answer


@pytest.mark.parametrize(
    "path",
    [
        "../../store.sqlite3", "..%2f..%2fstore.sqlite3", "%2e%2e/%2e%2e/store.sqlite3", "/etc/passwd",
        "//etc/passwd", "%2fetc%2fpasswd", "src/../../../lock", "src", "", ".", "..", "%00", "README.md%00.py",
        "README.md/", "./README.md", "src//nat", "..\\..\\lock", "C:\\x", "\u202e", "x" * 5000,
    ],
)  # fmt: skip
def test_no_path_leads_out_of_a_package(path: str, client: Client, job: dict[str, Any]) -> None:
    before = tree(client)
    request = f"GET /v1/agents/{job['id']}/files/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    head, _, body = raw(client, request.encode()).partition(b"\r\n\r\n")
    assert head.split()[1] in (b"400", b"404", b"307"), head
    assert b"SQLite" not in body and b"root:" not in body
    assert tree(client) == before


@pytest.mark.parametrize("job_id", ["..", "../agents", "agent-0'; DROP TABLE jobs; --", "%2e%2e", "\x00", "x" * 9000])
def test_no_id_leads_anywhere(job_id: str, client: Client, job: dict[str, Any]) -> None:
    name = "".join(f"%{byte:02x}" for byte in job_id.encode())
    before = tree(client)
    for method in ("GET", "DELETE"):
        for rest in ("", "/project.zip", "/events", "/files/README.md"):
            assert client.http.request(method, f"/v1/agents/{name}{rest}").status_code in (400, 404, 405, 414)
    assert tree(client) == before and client.job(job["id"])["state"] == "accepted"


def test_markup_stays_text_everywhere(client: Client, job: dict[str, Any]) -> None:
    said = {"verdict": "fails", "comment": EVIL, "consent": True, "cases": [{"input": EVIL, "expected": EVIL}]}
    assert client.post(f"/v1/agents/{job['id']}/feedback", said).status_code == 201
    for path in ("", "/files/README.md", "/files/PROVENANCE.json"):
        answer = client.get(f"/v1/agents/{job['id']}{path}")
        assert not answer.headers["content-type"].startswith("text/html")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy and "sha256-" in policy and "default-src 'none'" in policy
    assert EVIL not in page.text and "innerHTML" not in page.text
    assert "//" not in page.text.replace("// ", "").replace("://", "") and "src=" not in page.text
    missing = client.get(f"/v1/{EVIL}")
    assert missing.headers["content-type"] == "application/problem+json"


def zipped(write: Callable[[zipfile.ZipFile], Any]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        write(archive)
    return content.getvalue()


def linked(archive: zipfile.ZipFile) -> None:
    entry = zipfile.ZipInfo("src/link.py")
    entry.external_attr = 0o120777 << 16
    archive.writestr(entry, "/etc/passwd")


def overstated(archive_bytes: bytes) -> bytes:
    """The list says that a file of 60 MB has one byte."""
    return archive_bytes.replace((60_000_000).to_bytes(4, "little"), (1).to_bytes(4, "little"))


ZIPS = {
    "up": zipped(lambda archive: archive.writestr("../../evil.py", "x")),
    "absolute": zipped(lambda archive: archive.writestr("/tmp/evil.py", "x")),
    "backslash": zipped(lambda archive: archive.writestr("..\\evil.py", "x")),
    "link": zipped(linked),
    "bomb": zipped(lambda archive: archive.writestr("pyproject.toml", "0" * 60_000_000)),
    "lying bomb": overstated(zipped(lambda archive: archive.writestr("pyproject.toml", "0" * 60_000_000))),
    "many": zipped(lambda archive: [archive.writestr(f"f{number}.py", "") for number in range(1000)]),
    "binary": zipped(lambda archive: archive.writestr("pyproject.toml", b"\xff\xfe")),
    "none": b"PK\x03\x04 no archive",
    "empty": b"",
    "cut": zipped(lambda archive: archive.writestr("pyproject.toml", "x" * 5000))[:-30],
}


@pytest.mark.parametrize("name", ZIPS)
def test_archives_that_do_harm_are_refused(name: str, client: Client, job: dict[str, Any]) -> None:
    before, start_s = tree(client), time.monotonic()
    answer = client.http.post("/v1/validate", content=ZIPS[name], headers={"Content-Type": "application/zip"})
    assert answer.status_code == 422, answer.text
    assert "\n" not in answer.json()["detail"]
    assert time.monotonic() - start_s < 60
    assert tree(client) == before and not os.path.exists("/tmp/evil.py")


@pytest.mark.parametrize("path", ["../x.py", "/x.py", "a/../../x.py", "", "x" * 300, "a\x00.py", ".."])
def test_names_of_files_that_lead_out_are_refused(path: str, client: Client) -> None:
    files = {**render_project(SPEC), path: "x = 1"}
    assert client.post("/v1/validate", {"files": files}).status_code == 422


def exploding() -> dict[str, Any]:
    """A plan whose answers would fill the memory of whoever works them out."""
    spec = row(spec_of("text_pipeline", 1, of=frozenset({"text_pipeline"})))
    spec["tools"][0]["rules"]["ops"] = ["double"] * 60
    return spec


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"request": "' + b"\\ud800" + b'"}',
        b'{"request": "x", "seed": 1e400}',
        b'{"request": "x", "seed": NaN}',
        b'{"request": "x", "request": {}}',
        b"\xff\xfe",
        b'{"request": "x"',
        b"null",
        b'{"spec": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
        json.dumps({"spec": {**ROW, "package": "nat_x/../../y"}}).encode(),
        json.dumps({"spec": {**ROW, "task_id": "\ud800"}}).encode(),
        json.dumps({"spec": exploding()}).encode(),
    ],
    ids=range(12),
)
def test_bodies_that_are_none_change_nothing(body: bytes, client: Client, job: dict[str, Any]) -> None:
    before = client.service.store.counts()
    answer = client.http.post("/v1/agents", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert client.service.store.counts() == before
    assert client.metric("agent_rl_incidents_total", kind="bug") == 0


def test_oversized_bodies_are_not_read(client: Client) -> None:
    large = b"x" * (300 * 1024)
    for path in ("/v1/agents", "/v1/validate", "/v1/chat/completions"):
        assert client.http.post(path, content=large).status_code == 413
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        claimed = raw(client, f"{head}Content-Length: 99999999999\r\n\r\n".encode())
        assert b" 413 " in claimed.splitlines()[0]
        chunks = b"".join(b"10000\r\n" + b"x" * 0x10000 + b"\r\n" for _ in range(6))
        chunked = raw(client, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n")
        assert b" 413 " in chunked.splitlines()[0]
    for length in ("-1", "1e3", "x"):
        head = f"POST /v1/agents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n"
        assert b" 400 " in raw(client, head.encode()).splitlines()[0]


def test_slow_clients_are_sent_away_and_hold_up_nobody(
    nat_toolkit: NatToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_rl.envs.nat.service.service.BODY_TIMEOUT_S", 1.0)
    assert endpoint_app.BODY_TIMEOUT_S > 1.0
    with serving(nat_toolkit, tmp_path, reference_writer(SPEC)) as client:
        host, port = client.service.address.removeprefix("http://").split(":")
        head = b"POST /v1/agents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"
        slow = []
        for _ in range(40):
            connection = socket.create_connection((host, int(port)), timeout=30)
            connection.sendall(head)
            slow.append(connection)
        never = [socket.create_connection((host, int(port))) for _ in range(40)]  # not even a request
        assert client.made(spec=ROW)["state"] == "accepted"
        for connection in slow:
            assert b" 408 " in connection.recv(65536).splitlines()[0]
        for connection in (*slow, *never):
            connection.close()


def test_forged_keys_and_headers_open_nothing(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    from services import new_key

    making = scripted_creator(nat_toolkit, tmp_path, reference_writer(SPEC))
    secret = new_key(tmp_path, "ann")
    digest = (tmp_path / "store/keys.toml").read_text().split('sha256 = "')[1][:64]
    with service_of(making) as nobody:
        for value in (
            f"Bearer {digest}", f"Bearer {secret[:-1]}", "Bearer", "Bearer local", "Bearer null", f"Token {secret}",
            "Bearer " + "x" * 20_000, f"bearer {secret} x", "Bearer \xff",
        ):  # fmt: skip
            headers = {"Authorization": value.encode("latin-1")}
            answer = nobody.http.post("/v1/agents", json={"spec": ROW}, headers=headers)
            assert answer.status_code in (400, 401, 431), value[:40]
        assert nobody.service.store.counts() == {}
        assert nobody.http.get("/v1/agents", headers={"Authorization": f"bearer {secret}"}).status_code == 200
