"""The trainer as a service: agents elsewhere sample through the endpoint, their rewards come back, an update is made.

    service = TrainerService(config, key="...")
    with GRPOTrainer.from_config(config, env_factory=ServedFactory(), train_tasks=SERVED_TASKS,
                                 make_source=service.make_source) as trainer, service.serving(trainer):
        trainer.train()

The loop, checkpoints, metrics and alarms are the trainer's own; an update is one step of it. Whoever has the key may
name episodes; each also has a secret of its own. Not here: what requests mean (`endpoint/`), commands.
"""

import asyncio
import hmac
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from agent_rl.config import Config
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.distributed.processes import Processes
from agent_rl.endpoint.app import EndpointApp, key_of, read_body
from agent_rl.endpoint.endpoint import MAX_THREADS, MAX_WAITING
from agent_rl.endpoint.errors import EndpointError, bad_request, no_key
from agent_rl.endpoint.requests import parse_body
from agent_rl.endpoint.server import ThreadedServer
from agent_rl.endpoint.session import EpisodeSession, SessionSpec
from agent_rl.endpoint.sessions import Sessions, StillSamplingError
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Trajectory
from agent_rl.rollout.agents import AgentFactory
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.seeds import derive_seed
from agent_rl.serving.groups import Sampled, parse_groups, read_groups
from agent_rl.serving.served_source import ServedSource, UpdateStatus

SERVED_TASKS = [{"task_id": "served"}]
"""Stands for the tasks, which clients choose."""
MAX_GROUP_BYTES = 2**28
_ID = re.compile(r"[A-Za-z0-9._:/-]{1,200}")
TOLD_S = 10.0
"""How long the service waits to tell a client of a failed update before it ends."""


class ServedFactory(AgentFactory):
    """Plays no episode: clients do."""

    may_be_remote = False

    def play_episode(self, *_args: Any, **_kwargs: Any) -> Trajectory:
        raise NotImplementedError("episodes of a served trainer are played by its clients")


class TrainerService:
    """Sessions, groups and updates over HTTP around one trainer; in the main process alone something is served."""

    def __init__(self, config: Config, *, key: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self.address = ""
        """Root of the service once it runs, such as `http://127.0.0.1:8601`."""
        self._config = config
        self._key = key
        self._host, self._port = host, port
        self._was_told = threading.Event()
        self._asking = threading.Lock()
        """Held while groups become an update, so that no other request lets sampling go on meanwhile."""

    def make_source(self, policy: BasePolicy, processes: Processes) -> ServedSource:
        """The trainer's source of groups, made with the trainer."""
        self._sessions = Sessions(policy, max_waiting=MAX_WAITING)
        self._source = ServedSource(self._config, processes, on_done=self._sessions.resume)
        return self._source

    @contextmanager
    def serving(self, trainer: GRPOTrainer) -> Iterator[None]:
        """Serve while the block runs; an error that ends it is told to the client of the running update."""
        self._source.last_metrics = lambda: trainer.last_metrics
        self._source.begin_at(trainer.step)
        if not trainer.is_main_process:
            yield
            return
        app = EndpointApp(
            self._sessions, num_threads=MAX_THREADS, find_session=self._find, check_key=self._check_any_key
        )
        self._loaders = ThreadPoolExecutor(2, thread_name_prefix="groups")
        self._add_routes(app.app)
        server = ThreadedServer(app.app, host=self._host, port=self._port)
        self.address, self._is_everywhere = server.address, server.is_everywhere
        try:
            yield
            self._source.finish()
        except BaseException as error:
            if self._source.fail(f"{type(error).__name__}: {error}"):
                self._was_told.wait(TOLD_S)
            raise
        finally:
            self._sessions.conclude_all()
            server.close()
            app.close()
            self._loaders.shutdown(wait=False, cancel_futures=True)

    def finish(self) -> None:
        """The last update is whole: its client is told, and the last weights are served."""
        self._source.finish()

    def _add_routes(self, app: FastAPI) -> None:
        app.add_api_route("/health", self._health, methods=["GET"])
        app.add_api_route("/v1/sessions", self._open_session, methods=["POST"])
        app.add_api_route("/v1/episodes/{episode:path}", self._show_episode, methods=["GET"])
        app.add_api_route("/v1/episodes/{episode:path}", self._delete_episode, methods=["DELETE"])
        app.add_api_route("/v1/groups", self._train, methods=["POST"])
        app.add_api_route("/v1/updates/{number}", self._show_update, methods=["GET"])

    def _check_key(self, request: Request) -> None:
        if not hmac.compare_digest(key_of(request).encode(), self._key.encode()):
            raise no_key()

    def _check_any_key(self, key: str) -> None:
        if not hmac.compare_digest(key.encode(), self._key.encode()):
            self._sessions.find(key)

    # Episodes

    def _find(self, key: str, request: Request) -> EpisodeSession:
        """The session of a request: by its own secret, or by the service's key and the episode's name."""
        if not hmac.compare_digest(key.encode(), self._key.encode()):
            return self._sessions.find(key)
        headers = request.headers
        name = _checked_id(headers.get("x-agent-rl-episode"))
        seed, temperature = headers.get("x-agent-rl-seed"), headers.get("x-agent-rl-temperature")
        return self._sessions.find_or_open(
            _named(name), lambda: self._spec(name, {"seed": seed, "temperature": temperature})
        )

    def _spec(self, name: str, wanted: dict[str, Any]) -> SessionSpec:
        """What a session samples by: the configuration's limits, or smaller ones that are wanted."""
        seed, temperature = wanted.get("seed"), wanted.get("temperature")
        chosen = derive_seed(self._config.run.seed, name) if seed is None else _number(seed, int, "seed")
        heat = self._config.policy.temperature if temperature is None else _number(temperature, float, "temperature")
        if not (0 <= chosen < 2**63 and 0 <= heat <= 100):
            raise bad_request(f"seed {chosen} or temperature {heat:g} is out of range; expected seeds of 63 bits")
        limits = EpisodeLimits.from_config(self._config)
        for key in ("max_turns", "max_new_tokens", "max_tool_calls", "timeout_s"):
            value = wanted.get(key)
            if value is None:
                continue
            if not isinstance(value, int | float) or not value > 0:
                raise bad_request(f"{key} is {value!r:.80}; expected a number above 0", param=key)
            most = getattr(limits, key)
            limits = replace(limits, **{key: min(_number(value, type(most), key), most)})
        group = derive_seed(name.rpartition("/")[0])
        return SessionSpec(seed=chosen, group=group, temperature=heat, limits=limits)

    async def _open_session(self, request: Request) -> Response:
        self._check_key(request)
        body = parse_body(await read_body(request, 2**16))
        name = _checked_id(body.get("id"))
        key, _ = self._sessions.open(self._spec(name, body), name=_named(name))
        # A server on all addresses is reached by that which its client knows it by.
        root = str(request.base_url).rstrip("/") if self._is_everywhere else self.address
        row = {"id": name, "api_key": key, "base_url": f"{root}/s/{key}/v1"}
        return JSONResponse(row, 201)

    async def _show_episode(self, episode: str, request: Request) -> Response:
        self._check_key(request)
        session = self._sessions.named(_named(episode))
        if session is None:
            raise EndpointError(404, "unknown_episode", f"there is no episode {episode!r}")
        row = {"id": episode, "concluded": session.is_concluded, "stop_reason": session.stop_reason}
        return JSONResponse({**row, "turns": session.records()})

    async def _delete_episode(self, episode: str, request: Request) -> Response:
        self._check_key(request)
        await asyncio.get_running_loop().run_in_executor(self._loaders, self._sessions.conclude_named, _named(episode))
        return Response(status_code=204)

    # Updates

    async def _health(self, request: Request) -> Response:
        row: dict[str, Any] = {"status": "ok"}
        if request.headers.get("authorization"):
            self._check_key(request)
            done = self._source.num_done
            row |= {"model": "policy", "weight_version": done, "updates": done}
            row["in_flight"] = self._sessions.num_sampling
        return JSONResponse(row)

    async def _train(self, request: Request) -> Response:
        self._check_key(request)
        raw = await read_body(request, MAX_GROUP_BYTES)
        number = await asyncio.get_running_loop().run_in_executor(self._loaders, self._ask, raw)
        return JSONResponse({"update": number}, 202)

    def _ask(self, raw: bytes) -> int:
        played = parse_groups(parse_body(raw))
        with self._asking:
            self._source.check_free()
            try:
                self._sessions.pause()
            except StillSamplingError as error:
                message = f"{error} completions are in flight; the weights change only between them, repeat this later"
                raise EndpointError(409, "completions_in_flight", message, headers={"Retry-After": "1"}) from error
            try:
                read = read_groups(played, self._sampled(), step=self._source.next_step)
                number = self._source.ask(read)
            except BaseException:
                self._sessions.resume()
                raise
            for name in read.episode_ids:
                self._sessions.conclude_named(_named(name))
        return number

    def _sampled(self) -> Sampled:
        return Sampled(
            find=lambda name: self._sessions.named(_named(name)),
            was_concluded=lambda name: self._sessions.was_concluded(_named(name)),
            temperature=self._config.policy.temperature,
            weight_version=self._source.num_done,
        )

    async def _show_update(self, number: str, request: Request) -> Response:
        self._check_key(request)
        status = self._source.status
        if status is None or number not in ("latest", str(status.update)):
            raise EndpointError(404, "unknown_update", f"update {number} is not the last one, which alone is known")
        return JSONResponse(self._shown(status))

    def _shown(self, status: UpdateStatus) -> dict[str, Any]:
        if status.state == "failed":
            self._was_told.set()
        return asdict(status)


def _named(name: str) -> str:
    return f"episode:{name}"


def _number(value: Any, kind: type[int] | type[float], key: str) -> Any:
    """A number of a body, or of a header as text; EndpointError for what is none of this kind."""
    try:
        number = kind(value)
        if isinstance(value, bool) or (kind is int and not isinstance(value, str) and number != value):
            raise ValueError
    except (TypeError, ValueError, OverflowError) as error:
        expected = "a whole number" if kind is int else "a number"
        raise bad_request(f"{key} is {value!r:.80}; expected {expected}", param=key) from error
    return number


def _checked_id(name: Any) -> str:
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise bad_request(
            f"the episode {name!r:.100} is no name; send X-Agent-RL-Episode (or id), 1 to 200 letters, digits or ._:/-"
        )
    return name
