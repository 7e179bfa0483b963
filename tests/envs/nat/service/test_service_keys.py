"""Who may call the service: keys, scopes, limits, and requests that other people's pages send."""

import hashlib
import os
import stat
import threading
from pathlib import Path

import pytest
from commands import one_line_error, run_here
from nat_projects import row, spec_of
from services import Client, HeldScript, new_key, reference_writer, scripted_creator, service_of, serving, wait_until

from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.service.keys import KeyRing, add_key, read_keys
from agent_rl.envs.nat.service.service import AgentService
from agent_rl.errors import ConfigError

ROW = row(spec_of("unit_converter", 1))


def test_a_key_is_shown_once_and_kept_as_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    secret = add_key(path, "ann", scopes=["create"], per_hour=5)
    other = add_key(path, "bob", scopes=["chat", "admin"], per_hour=7)
    assert secret != other and len(secret) > 40
    text = path.read_text()
    assert secret not in text and hashlib.sha256(secret.encode()).hexdigest() in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [(key.name, key.scopes, key.per_hour) for key in read_keys(path)] == [
        ("ann", ("create",), 5), ("bob", ("chat", "admin"), 7),
    ]  # fmt: skip
    ring = KeyRing(path)
    found = ring.find(secret)
    assert found is not None and found.name == "ann"
    for forged in ("", "ark_", secret[:-1], secret + "x", secret.upper(), hashlib.sha256(secret.encode()).hexdigest()):
        assert ring.find(forged) is None


def test_a_key_that_is_removed_is_refused_at_once_and_none_opens_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    secret = add_key(path, "ann", scopes=["create"], per_hour=5)
    ring = KeyRing(path)
    assert ring.find(secret) and not ring.is_open
    path.write_text("")
    path.chmod(0o600)
    assert ring.find(secret) is None and not ring.is_open
    path.unlink()
    assert ring.find(secret) is None and not ring.is_open


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[[key]", "no TOML"),
        ('[[key]]\nname = "a"\nsha256 = "x"\nscopes = []\nper_hour = 1\n', "sha256"),
        (f'[[key]]\nname = "a"\nsha256 = "{"0" * 64}"\nscopes = ["root"]\nper_hour = 1\n', "scopes"),
        (f'[[key]]\nname = "a/b"\nsha256 = "{"0" * 64}"\nscopes = []\nper_hour = 1\n', "name"),
        (f'[[key]]\nname = "a"\nsha256 = "{"0" * 64}"\nscopes = []\nper_hour = 1\n' * 2, "two keys"),
        ("other = 1\n", "other"),
    ],
)
def test_what_is_no_file_of_keys_is_one_sentence(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=word) as caught:
        read_keys(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    add_key(tmp_path / "keys.toml", "ann", scopes=["create"], per_hour=5)
    (tmp_path / "keys.toml").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        KeyRing(tmp_path / "keys.toml")


def test_the_command_makes_keys(tmp_path: Path) -> None:
    words = ["serve", f"service.store={tmp_path}"]
    done = run_here(*words, "add-key", "ann", "--scope", "create", "--per-hour", "9")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    ring = KeyRing(tmp_path / "keys.toml")
    found = ring.find(done.stdout.strip())
    assert found is not None and (found.name, found.scopes, found.per_hour) == ("ann", ("create",), 9)
    assert "has a key 'ann'" in one_line_error(run_here(*words, "add-key", "ann"))
    assert "no name for a key" in one_line_error(run_here(*words, "add-key", "../x"))
    assert "no scope" in one_line_error(run_here(*words, "add-key", "bob", "--scope", "root"))
    run_here(*words, "add-key", "bob")
    assert "admin" not in read_keys(tmp_path / "keys.toml")[1].scopes
    assert "service.ports" in one_line_error(run_here("serve", "service.ports=1"))


@pytest.mark.parametrize("way", [["{}"], ["--set", "{}"], ["--set={}"]])
def test_a_key_of_the_configuration_is_set_in_each_documented_way(way: list[str], tmp_path: Path) -> None:
    for number in range(2):  # several may follow each other
        others = [word.format("service.port=8123") for word in way] * number
        store = [word.format(f"service.store={tmp_path}/{number}") for word in way]
        assert run_here("serve", *others, *store, "add-key", "ann").returncode == 0
        assert (tmp_path / f"{number}/keys.toml").is_file()
    assert "service.ports" in one_line_error(run_here("serve", *(word.format("service.ports=1") for word in way)))
    assert "a=b.yaml" in one_line_error(run_here("serve", "--config", "a=b.yaml"))


def test_another_address_needs_keys(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    making = scripted_creator(nat_toolkit, tmp_path, [], service={"host": "0.0.0.0"})
    with pytest.raises(ConfigError, match="--insecure"):
        AgentService(making)
    with AgentService(making, insecure=True):
        pass
    new_key(tmp_path, "ann")
    with AgentService(making):
        pass


def test_every_route_but_the_open_ones_asks_for_a_key(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    making = scripted_creator(nat_toolkit, tmp_path, lambda *_: "ready")
    secret = new_key(tmp_path, "ann", "create")
    with service_of(making) as nobody:
        for path in ("/", "/docs", "/openapi.json", "/healthz", "/readyz"):
            assert nobody.get(path).status_code == 200
        assert nobody.get("/readyz").json()["needs_key"] is True
        paths = nobody.get("/openapi.json").json()["paths"]
        closed = [(path, method) for path, methods in paths.items() for method in methods]
        for path, method in closed:
            if path in ("/healthz", "/readyz"):
                continue
            for headers in (
                {},
                {"Authorization": "Bearer ark_forged"},
                {"Authorization": "Basic x"},
                {"x-api-key": "z"},
            ):
                answer = nobody.http.request(method.upper(), path.replace("{job_id}", "agent-0"), headers=headers)
                assert answer.status_code == 401, (path, method)
        ann = Client(nobody.service, secret)
        assert ann.get("/v1/agents").status_code == 200
        assert nobody.get("/v1/agents", **{"X-API-Key": secret}).status_code == 200
        for path in ("/v1/validate", "/v1/agents/agent-0/feedback"):
            body = {"files": {}} if "validate" in path else {"verdict": "works", "consent": True}
            assert ann.post(path, body).status_code == 403
        chat = ann.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
        assert chat.status_code == 403
        assert nobody.service.store.counts() == {}
        (tmp_path / "store/keys.toml").write_text("[[key]")
        assert ann.get("/v1/agents").status_code == 503


def test_a_key_has_so_many_requests_an_hour(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    making = scripted_creator(nat_toolkit, tmp_path, lambda *_: "text", creation={"candidates": 1, "max_turns": 1})
    secret, other = new_key(tmp_path, "ann", per_hour=2), new_key(tmp_path, "bob", per_hour=9)
    with service_of(making) as nobody:
        ann, bob = Client(nobody.service, secret), Client(nobody.service, other)
        once = {"Idempotency-Key": "k"}
        assert ann.post("/v1/agents", {"spec": ROW}, **once).status_code == 202
        assert ann.post("/v1/agents", {"spec": ROW}, **once).status_code == 202  # the same one is not counted
        ann.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
        answer = ann.post("/v1/agents", {"spec": ROW})
        assert answer.status_code == 429 and 3000 < int(answer.headers["retry-after"]) <= 3600
        chat = ann.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
        assert (chat.status_code, chat.json()["error"]["type"]) == (429, "rate_limit_error")
        assert bob.post("/v1/agents", {"spec": ROW}).status_code == 202
        assert ann.metric("agent_rl_rate_limited_total", key_name="ann") == 2


def test_a_key_has_so_many_running_and_the_queue_is_bounded(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    script = HeldScript("text")
    making = scripted_creator(
        nat_toolkit,
        tmp_path,
        script,
        service={"workers": 4, "running_per_key": 2, "max_queue": 1},
        creation={"candidates": 1, "max_turns": 1},
    )
    secret, other = new_key(tmp_path, "ann"), new_key(tmp_path, "bob")
    with service_of(making) as nobody:
        ann, bob = Client(nobody.service, secret), Client(nobody.service, other)
        for number in (1, 2):
            ann.begun(spec=ROW)
            wait_until(lambda number=number: script.num_asked == number)
        third = ann.begun(spec=ROW)
        answer = bob.post("/v1/agents", {"spec": ROW})
        assert answer.status_code == 429 and answer.headers["retry-after"]
        assert nobody.get("/readyz").json()["why"] == {"queue": "it is full"}
        assert ann.job(third)["state"] == "queued" and script.num_asked == 2
        script.may_go_on.set()
        assert ann.ended(third)["state"] == "rejected"


def test_a_page_of_another_site_cannot_use_a_service_without_keys(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    with serving(nat_toolkit, tmp_path, reference_writer(spec_of("unit_converter", 1))) as client:
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
            assert client.post("/v1/agents", {"spec": ROW}, **headers).status_code == 403
            assert client.get("/v1/agents", **headers).status_code == 403
        own = client.service.address
        assert client.get("/v1/agents", Origin=own).status_code == 200
        assert "access-control-allow-origin" not in client.get("/v1/agents", Origin=own).headers
        assert client.service.store.counts() == {}


def test_many_who_write_keys_at_once_or_read_them_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    secret = add_key(path, "first", scopes=["create"], per_hour=1)
    ring, missed = KeyRing(path), []

    def look() -> None:
        missed.extend(1 for _ in range(300) if ring.find(secret) is None)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(10):
        add_key(path, f"key-{number}", scopes=["create"], per_hour=1)
    for reader in readers:
        reader.join()
    assert missed == [] and len(read_keys(path)) == 11
    assert os.listdir(tmp_path) == ["keys.toml"]
