"""A trainer behind an endpoint: a client plays and scores episodes, updates are those of the trainer's own rollout."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from builders import make_trainer
from endpoint_agents import to_message
from fakes import LETTER_TASKS, LetterEnv, ScriptedPolicy, save_tiny_model, tiny_config

from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.distributed.processes import Processes
from agent_rl.endpoint.errors import EndpointError
from agent_rl.endpoint.requests import parse_chat
from agent_rl.endpoint.session import ChatExchange, EpisodeSession
from agent_rl.records import SamplingParams, StopReason
from agent_rl.scripts.commands import serve_trainer
from agent_rl.seeds import derive_seed
from agent_rl.serving import trainer_service
from agent_rl.serving.groups import is_target
from agent_rl.serving.trainer_service import SERVED_TASKS, ServedFactory, TrainerService

KEY = "the key"


class Client:
    """Plays letter episodes as any program could."""

    def __init__(self, address: str) -> None:
        self.http = httpx.Client(
            base_url=address, headers={"Authorization": f"Bearer {KEY}"}, timeout=60.0, trust_env=False
        )

    def ask(self, episode: str, text: str, **headers: str) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], "return_token_ids": True}
        return self.http.post("/v1/chat/completions", json=body, headers={"X-Agent-RL-Episode": episode, **headers})

    def play(self, episode: str, text: str, seed: int) -> dict[str, Any]:
        choice = self.ask(episode, text, **{"X-Agent-RL-Seed": str(seed)}).json()["choices"][0]
        ids = [choice["token_ids"]]
        if choice["finish_reason"] == "length":
            return {"id": episode, "reward": 0.0, "success": False, "token_ids": ids}
        result = LetterEnv().step(to_message(choice["message"]))
        return {
            "id": episode,
            "reward": result.reward,
            "success": bool(result.reward_parts["success"]),
            "token_ids": ids,
        }

    def step(self, step: int, *, group_size: int = 8) -> dict[str, Any]:
        """One step's groups, with the seeds of the trainer's own rollout."""

        def one(position: int, sample: int) -> dict[str, Any]:
            task = LETTER_TASKS[position]
            seed = derive_seed(0, step, task["task_id"], position, sample)
            return self.play(f"{step}/{position}/{sample}", task["question"], seed)

        with ThreadPoolExecutor(32) as pool:
            groups = [
                {
                    "task_id": LETTER_TASKS[position]["task_id"],
                    "episodes": list(pool.map(one, [position] * group_size, range(group_size))),
                }
                for position in range(len(LETTER_TASKS))
            ]
        return {"groups": groups}

    def train(self, groups: dict[str, Any]) -> dict[str, Any]:
        answer = self.http.post("/v1/groups", json=groups)
        assert answer.status_code == 202, answer.text
        return self.wait(answer.json()["update"])

    def wait(self, update: int) -> dict[str, Any]:
        while True:
            status = self.http.get(f"/v1/updates/{update}").json()
            if status["state"] != "running":
                return status
            time.sleep(0.01)


class Served:
    """A trainer that runs in a thread, and a client of it."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.config = tiny_config(folder, **sections)
        self.service = TrainerService(self.config, key=KEY)
        self.trainer = GRPOTrainer.from_config(
            self.config,
            env_factory=ServedFactory(),
            train_tasks=SERVED_TASKS,
            make_source=self.service.make_source,
        )
        self.error: BaseException | None = None
        self.done = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        while not self.service.address:
            assert self._thread.is_alive()
            time.sleep(0.01)
        self.client = Client(self.service.address)

    def _run(self) -> None:
        try:
            with self.trainer, self.service.serving(self.trainer):
                self.trainer.train()
                self.service.finish()
                self.done.set()
                self._stop.wait(60)
        except BaseException as error:
            self.error = error

    def close(self) -> None:
        self._stop.set()
        self.client.http.close()
        self._thread.join(60)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    save_tiny_model(tmp_path / "model")
    running = Served(tmp_path, train={"steps": 2}, run={"name": "served"})
    yield running
    if not running.done.is_set():  # the trainer waits for groups, so it is given some until its last step
        while running.service._source.num_done < running.config.train.steps and running.error is None:
            running.client.train(running.client.step(90 + running.service._source.num_done))
    running.close()


def metrics_of(folder: Path, name: str) -> list[dict[str, float]]:
    path = folder / "runs" / name / "metrics.jsonl"
    kept = ("reward/", "loss/", "policy/", "success/", "rollout/tokens", "rollout/turns", "optim/", "mismatch/")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in row.items() if key.startswith(kept)} for row in rows]


def test_updates_from_outside_are_those_of_the_trainers_own_rollout(tmp_path: Path, served: Served) -> None:
    for step in (1, 2):
        status = served.client.train(served.client.step(step))
        assert (status["state"], status["weight_version"], status["error"]) == ("completed", step, None)
        assert status["metrics"]["rollout/id_mismatches"] == 0.0
    with make_trainer(tmp_path, env=LetterEnv, train={"steps": 2}, run={"name": "own"}) as trainer:
        positions = iter([[0, 1, 2, 3], [0, 1, 2, 3]])
        trainer._source._curriculum.next = lambda _n, *, step: next(positions)  # type: ignore[method-assign]
        trainer.train()
    for mine, own in zip(metrics_of(tmp_path, "served"), metrics_of(tmp_path, "own"), strict=True):
        assert mine == pytest.approx(own, abs=2e-6)


def test_after_the_last_update_its_weights_are_served_and_more_groups_refused(served: Served) -> None:
    for step in (1, 2):
        served.client.train(served.client.step(step))
    assert served.done.wait(30)
    answer = served.client.ask("eval/0", "post", **{"X-Agent-RL-Temperature": "0"})
    assert answer.json()["system_fingerprint"] == "weights-2"
    more = served.client.http.post("/v1/groups", json=served.client.step(3))
    assert (more.status_code, more.json()["error"]["code"]) == (409, "training_finished")


def test_nothing_is_served_without_the_key(served: Served) -> None:
    address = served.service.address
    for method, path in [
        ("POST", "/v1/groups"),
        ("POST", "/v1/sessions"),
        ("GET", "/v1/updates/1"),
        ("GET", "/v1/episodes/a/b"),
        ("DELETE", "/v1/episodes/a/b"),
        ("POST", "/v1/chat/completions"),
    ]:
        for headers in ({}, {"Authorization": "Bearer other"}):
            sent = {"X-Agent-RL-Episode": "a", **headers}
            answer = httpx.request(method, address + path, headers=sent, trust_env=False)
            assert answer.status_code == 401, path
    assert httpx.get(f"{address}/health", trust_env=False).json() == {"status": "ok"}
    assert httpx.get(f"{address}/v1/models", trust_env=False).status_code == 401
    assert served.client.http.get("/v1/models").json()["data"][0]["id"] == "policy"


def test_an_episode_is_shown_deleted_and_then_takes_nothing(served: Served) -> None:
    client = served.client
    sampled = client.ask("run/1:a", "post", **{"X-Agent-RL-Function": "main/sub"}).json()
    shown = client.http.get("/v1/episodes/run/1:a").json()
    assert [turn["token_ids"] for turn in shown["turns"]] == [sampled["choices"][0]["token_ids"]]
    assert (shown["turns"][0]["function"], shown["turns"][0]["parent"]) == ("main/sub", None)
    assert client.http.delete("/v1/episodes/run/1:a").status_code == 204
    assert client.http.get("/v1/episodes/run/1:a").status_code == 404
    assert client.ask("run/1:a", "post").status_code == 409


def test_an_episode_may_be_opened_with_a_secret_of_its_own(served: Served) -> None:
    opened = served.client.http.post("/v1/sessions", json={"id": "a", "seed": 5, "temperature": 0.0}).json()
    answer = httpx.post(
        f"{opened['base_url']}/chat/completions",
        json={"messages": [{"role": "user", "content": "post"}]},
        headers={"Authorization": f"Bearer {opened['api_key']}"},
        trust_env=False,
        timeout=30.0,
    )
    assert (answer.status_code, answer.headers["x-agent-rl-temperature"]) == (200, "0")
    assert len(served.client.http.get("/v1/episodes/a").json()["turns"]) == 1
    assert served.client.http.post("/v1/sessions", json={"id": "a"}).status_code == 409
    limits = {"max_turns": 1, "max_new_tokens": 3, "timeout_s": 1e9, "max_tool_calls": 2.0}
    served.client.http.post("/v1/sessions", json={"id": "b", **limits}).raise_for_status()
    kept = served.service._sessions.named("episode:b").spec.limits
    assert (kept.max_turns, kept.max_new_tokens, kept.max_tool_calls) == (1, 3, 2)
    assert kept.timeout_s == served.config.rollout.episode_timeout_s
    for wrong in (0, "5", True, float("nan")):
        answer = served.client.http.post("/v1/sessions", content=json.dumps({"id": "c", "max_turns": wrong}))
        assert answer.status_code == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Agent-RL-Episode": "two words"},
        {"X-Agent-RL-Episode": "x" * 201},
        {"X-Agent-RL-Episode": "b", "X-Agent-RL-Seed": "many"},
        {"X-Agent-RL-Episode": "b", "X-Agent-RL-Seed": "-1"},
        {"X-Agent-RL-Episode": "b", "X-Agent-RL-Temperature": "nan"},
        {},
    ],
)
def test_names_and_numbers_that_are_none_are_refused(served: Served, headers: dict[str, str]) -> None:
    body = {"messages": [{"role": "user", "content": "post"}]}
    assert served.client.http.post("/v1/chat/completions", json=body, headers=headers).status_code == 400


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"groups": []}, 400, "invalid_value"),
        ({"groups": [{"task_id": "t", "episodes": []}]}, 400, "invalid_value"),
        ({"groups": [{"task_id": "t", "episodes": [{"id": "x", "reward": "1"}]}], "more": 1}, 400, "invalid_value"),
        ({"groups": [{"task_id": "t", "episodes": [{"id": "never", "reward": 1.0}]}]}, 404, "unknown_episode"),
        ({"groups": [{"task_id": "t", "episodes": [{"id": "x"}, {"id": "x"}]}]}, 400, "invalid_value"),
    ],
)
def test_groups_that_are_none_change_nothing(served: Served, change: Any, status: int, code: str) -> None:
    answer = served.client.http.post("/v1/groups", json=change)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert served.client.http.get("/v1/updates/latest").status_code == 404
    assert served.client.ask("still/served", "post").status_code == 200


def test_episodes_whose_client_saw_other_ids_or_failed_are_dropped_and_counted(served: Served) -> None:
    groups = served.client.step(1)
    groups["groups"][0]["episodes"][0]["token_ids"] = [[1, 2, 3]]
    groups["groups"][1]["episodes"][0] |= {"reward": None, "error": "the workflow raised"}
    groups["groups"][2]["episodes"].append({"id": "never/asked", "error": "no connection"})
    metrics = served.client.train(groups)["metrics"]
    assert (metrics["rollout/id_mismatches"], metrics["rollout/env_errors"]) == (1.0, 3.0)


def test_a_failing_update_is_told_to_its_client_and_ends_the_run(served: Served) -> None:
    groups = served.client.step(1)
    for group in groups["groups"]:
        for episode in group["episodes"]:
            episode |= {"reward": None, "error": "everything failed"}
    status = served.client.train(groups)
    assert status["state"] == "failed"
    assert "everything failed" in status["error"]
    served._thread.join(30)
    assert served.error is not None


def test_an_interrupted_trainer_is_resumed_with_the_next_update(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    first = Served(tmp_path, train={"steps": 2}, run={"name": "r"})
    first.client.train(first.client.step(1))

    def press_ctrl_c() -> None:
        raise KeyboardInterrupt

    first.service._source._wait = press_ctrl_c  # type: ignore[assignment, method-assign]
    first._thread.join(30)
    assert isinstance(first.error, KeyboardInterrupt)
    again = Served(tmp_path, train={"steps": 2}, run={"name": "r"}, checkpoint={"resume": "auto"})
    assert again.client.http.get("/health").json()["updates"] == 1
    assert again.client.train(again.client.step(2))["update"] == 2
    again.close()


@pytest.mark.parametrize(
    ("function", "targets", "expected"),
    [
        (None, None, True),
        ("a/b", None, True),
        ("a/b", ["b"], True),
        ("a/b", ["a"], True),
        ("a/b", ["a/b"], True),
        ("a/b", ["c"], False),
        (None, ["a"], False),
    ],
)
def test_target_functions(function: str | None, targets: list[str] | None, expected: bool) -> None:
    assert is_target(function, targets) is expected


# Without a trainer behind it


@pytest.fixture(name="service")
def service_without_trainer(tmp_path: Path) -> TrainerService:
    service = TrainerService(tiny_config(tmp_path, train={"steps": 10}), key=KEY)
    service.make_source(
        ScriptedPolicy(lambda _turn, _sampling: "aa"), Processes(device=torch.device("cpu"), timeout_s=5.0)
    )
    return service


def session_of(service: TrainerService, name: str, **wanted: Any) -> EpisodeSession:
    return service._sessions.find_or_open(f"episode:{name}", lambda: service._spec(name, wanted))


def begin(service: TrainerService, name: str, *texts: str, **wanted: Any) -> ChatExchange:
    rows = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    request = parse_chat({"messages": rows})
    session = session_of(service, name, **wanted)
    return service._sessions.start(session, request, is_retry=False, function=None)[0]


def play(service: TrainerService, name: str, **wanted: Any) -> None:
    service._sessions.sample(session_of(service, name, **wanted), begin(service, name, "q", **wanted))


def ask_for_update(service: TrainerService, *names: str, reward: float | None = 1.0) -> int:
    episodes = [{"id": name, "reward": reward} for name in names]
    return service._ask(json.dumps({"groups": [{"task_id": "t", "episodes": episodes}]}).encode())


def refusal(service: TrainerService, *names: str) -> tuple[int, str]:
    with pytest.raises(EndpointError) as caught:
        ask_for_update(service, *names)
    return caught.value.status, caught.value.code


def test_of_two_updates_asked_for_at_once_the_second_leaves_sampling_paused(
    service: TrainerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, pause = threading.Barrier(2), service._sessions.pause

    def pause_together() -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        pause()

    monkeypatch.setattr(service._sessions, "pause", pause_together)
    for name in ("a", "b"):
        play(service, name)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask_for_update, service, name) for name in ("a", "b")]
    (error,) = [error for each in asked if (error := each.exception()) is not None]
    assert isinstance(error, EndpointError) and error.code == "update_running"
    with pytest.raises(EndpointError) as caught:
        begin(service, "c", "q")
    assert caught.value.status == 429


def test_a_completion_that_ends_while_groups_are_read_is_not_lost(
    service: TrainerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(service, "a")
    second, read = begin(service, "a", "q", "aa", "more"), trainer_service.read_groups

    def read_meanwhile(*args: Any, **kwargs: Any) -> Any:
        groups = read(*args, **kwargs)
        service._sessions.sample(session_of(service, "a"), second)
        return groups

    monkeypatch.setattr(trainer_service, "read_groups", read_meanwhile)
    assert refusal(service, "a") == (409, "completions_in_flight")


def test_groups_that_are_refused_let_sampling_go_on(service: TrainerService) -> None:
    assert refusal(service, "never") == (404, "unknown_episode")
    play(service, "a")
    assert ask_for_update(service, "a") == 1


def test_groups_that_are_sent_again_are_known_as_such(service: TrainerService) -> None:
    play(service, "a")
    ask_for_update(service, "a")
    assert refusal(service, "a") == (409, "update_running")
    service._source.collect(step=1)
    service._source.commit()
    service._source.finish()
    assert refusal(service, "a") == (409, "episode_concluded")


def test_episodes_of_another_temperature_or_of_older_weights_are_not_trained(service: TrainerService) -> None:
    play(service, "hot", temperature="50")
    play(service, "old")
    assert refusal(service, "hot") == (400, "invalid_value")
    service._source.begin_at(1)
    assert refusal(service, "old") == (409, "stale_episode")
    assert ask_for_update(service, "hot", "old", reward=None) == 2


def test_a_failure_of_the_policy_is_no_episode_of_its_own(tmp_path: Path) -> None:
    def fail(_turn: int, _sampling: SamplingParams) -> str:
        raise RuntimeError("engine down")

    service = TrainerService(tiny_config(tmp_path), key=KEY)
    service.make_source(ScriptedPolicy(fail), Processes(device=torch.device("cpu"), timeout_s=5.0))
    play(service, "a")
    ask_for_update(service, "a")
    (trajectory,) = service._source._asked.get().groups[0].trajectories
    assert (trajectory.reward, trajectory.stop_reason) == (None, StopReason.ENV_ERROR)
    assert trajectory.error is not None and "engine down" in trajectory.error


@pytest.mark.parametrize(
    "wanted",
    [
        {"seed": float("inf")},
        {"seed": 0.5},
        {"seed": True},
        {"temperature": 10**400},
        {"temperature": True},
        {"temperature": []},
        {"max_turns": float("inf")},
        {"max_turns": 0.5},
        {"max_new_tokens": 1.5},
        {"timeout_s": 10**400},
    ],
)
def test_numbers_that_no_session_can_have_are_refused(service: TrainerService, wanted: dict[str, Any]) -> None:
    with pytest.raises(EndpointError) as caught:
        service._spec("a", wanted)
    assert caught.value.status == 400


def test_a_server_on_all_addresses_is_named_as_its_client_knows_it(tmp_path: Path) -> None:
    service = TrainerService(tiny_config(tmp_path), key=KEY, host="0.0.0.0")
    service.make_source(ScriptedPolicy(["aa"]), Processes(device=torch.device("cpu"), timeout_s=5.0))
    with service.serving(SimpleNamespace(step=0, is_main_process=True, last_metrics={})):  # type: ignore[arg-type]
        root = f"http://localhost:{service.address.rpartition(':')[2]}"
        opened = Client(root).http.post("/v1/sessions", json={"id": "a"}).json()
    assert opened["base_url"].startswith(f"{root}/s/")


@pytest.mark.parametrize(("given", "is_told"), [(None, True), ("", True), ("mine", False)])
def test_a_key_that_was_made_up_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str | None, is_told: bool
) -> None:
    class Fake:
        """A trainer, its service, and both as contexts."""

        address, is_main_process, make_source = "http://here", True, None

        def __init__(self, *_args: Any, **_kwargs: Any) -> None:
            pass

        from_config = classmethod(lambda cls, *_args, **_kwargs: cls())

        def serving(self, _trainer: Any) -> "Fake":
            return self

        def __enter__(self) -> "Fake":
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def train(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.delenv("AGENT_RL_KEY", raising=False)
    if given is not None:
        monkeypatch.setenv("AGENT_RL_KEY", given)
    monkeypatch.setattr("agent_rl.core.trainer_grpo.GRPOTrainer", Fake)
    monkeypatch.setattr(trainer_service, "TrainerService", Fake)
    monkeypatch.setattr(serve_trainer, "read_served_config", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        serve_trainer.main(Path("x.yaml"))
    assert ("AGENT_RL_KEY=" in capsys.readouterr().out) is is_told
