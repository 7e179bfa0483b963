"""The running service: creator, store, threads, the API on one port and the metrics on another.

    with AgentService.start(config) as service:
        print(service.address)

`drain` is the gentle end. Not here: routes (`app.py`), signals and words for a terminal (`commands.py`).
"""

import secrets
import threading
import time
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import Response

from agent_rl.closing import Closing
from agent_rl.endpoint.app import BODY_TIMEOUT_S, EndpointApp
from agent_rl.endpoint.endpoint import MAX_WAITING
from agent_rl.endpoint.errors import EndpointError, busy
from agent_rl.endpoint.server import ThreadedServer
from agent_rl.endpoint.session import EpisodeSession, SessionSpec
from agent_rl.endpoint.sessions import Sessions
from agent_rl.envs.nat.create.creator import AgentCreator
from agent_rl.envs.nat.create.settings import ServiceConfig
from agent_rl.envs.nat.service.app import ServiceApp
from agent_rl.envs.nat.service.changes import JobChanges
from agent_rl.envs.nat.service.gate import Gate
from agent_rl.envs.nat.service.keys import ApiKey, KeyRing
from agent_rl.envs.nat.service.metrics import CONTENT_TYPE, ServiceLoad, ServiceMetrics
from agent_rl.envs.nat.service.runner import JobRunner
from agent_rl.envs.nat.service.store import JobStore
from agent_rl.errors import ConfigError, SandboxError
from agent_rl.rollout.turns import EpisodeLimits

CHAT_PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/models")
CHAT_THREADS = 64
READY_S = 15.0
"""How long an answer of model and toolkit holds."""
LATE_S = 60.0
"""Model and toolkit that take longer are not ready."""


class AgentService(Closing):
    """Serves until `close`; the creator is the caller's and stays open."""

    def __init__(self, creator: AgentCreator, *, insecure: bool = False) -> None:
        """Start. ConfigError for an address that needs keys or cannot be bound, and for a store that is used.

        With `insecure` another address than loopback is served without keys.
        """
        config = creator.config.service
        self._config = config
        folder = Path(config.store)
        with ExitStack() as opened:
            self.store = JobStore(folder)
            opened.callback(self.store.close)
            keys = KeyRing(keys_path(config))
            if keys.is_open and not insecure and not _is_loopback(config.host):
                raise ConfigError(
                    f"service.host is {config.host}, which others reach, and there are no keys; make one with "
                    "agent-rl serve add-key NAME, or give --insecure"
                )
            self.metrics = ServiceMetrics()
            changes = JobChanges()
            self.runner = JobRunner(creator, self.store, config, self.metrics, changes.notify)
            self._app = ServiceApp(
                creator,
                self.store,
                self.runner,
                self.metrics,
                changes,
                needs_key=not keys.is_open,
                probe=_ReadyProbe(creator).why,
            )
            chat = self._mount_chat(creator)
            opened.callback(chat.close)
            self._observe(creator)
            self.runner.start()
            opened.callback(self.runner.close)
            gate = Gate(
                self._app.app,
                keys=keys,
                metrics=self.metrics,
                max_bytes=config.max_body_kb * 1024,
                any_host=insecure,
                body_timeout_s=BODY_TIMEOUT_S,
            )
            server = ThreadedServer(gate, host=config.host, port=config.port)
            opened.callback(server.close)
            self.address = server.address
            self.metrics_address = ""
            """Where Prometheus asks; empty where it cannot."""
            if config.metrics_port is not None:
                told = ThreadedServer(_metrics_app(self.metrics), host=config.host, port=config.metrics_port)
                opened.callback(told.close)
                self.metrics_address = f"{told.address}/metrics"
            self._opened = opened.pop_all()
        self.is_open_to_all = keys.is_open

    def drain(self) -> None:
        """Take nothing new, let what runs end within `service.drain_s`, and put the rest back into the queue."""
        self._app.is_draining = True
        self.runner.drain(self._config.drain_s)

    def close(self) -> None:
        self._app.is_draining = True
        self._opened.close()

    def _mount_chat(self, creator: AgentCreator) -> EndpointApp:
        """The endpoint's routes, each request an episode of its own."""
        run = creator.config.run_config
        sessions = Sessions(creator.policy, max_waiting=MAX_WAITING)
        limits = EpisodeLimits(max_new_tokens=run.policy.max_new_tokens, max_turns=1)

        def find(_secret: str, request: Request) -> EpisodeSession:
            key = request.state.key
            assert isinstance(key, ApiKey)
            if "chat" not in key.scopes:
                raise EndpointError(403, "forbidden", f"the key {key.name!r} may not chat; ask for that scope")
            if self._app.is_draining:
                raise EndpointError(503, "draining", "the service is about to end", headers={"Retry-After": "10"})
            if wait_s := self.store.use(key.name, key.per_hour):
                self.metrics.rate_limited(key.name)
                raise busy(f"{key.per_hour} requests an hour are used up", retry_after_s=round(wait_s))
            temperature = _temperature(request.headers.get("x-agent-rl-temperature"))
            spec = SessionSpec(seed=secrets.randbits(62), group=0, temperature=temperature, limits=limits)
            return EpisodeSession(creator.policy, spec)

        endpoint = EndpointApp(sessions, num_threads=CHAT_THREADS, find_session=find, check_key=lambda _key: None)
        routes = [route for route in endpoint.router.routes if getattr(route, "path", "") in CHAT_PATHS]
        self._app.app.router.routes.extend(routes)
        return endpoint

    def _observe(self, creator: AgentCreator) -> None:
        self.metrics.model(creator.model)
        creator.toolkit.observe_runs(self.metrics.sandbox_run)
        self.metrics.watch(
            lambda: ServiceLoad(
                jobs=self.store.counts(), engine=creator.policy.load(), store_bytes=self.store.num_bytes()
            )
        )


class _ReadyProbe:
    """Asks model and toolkit now and then, in a thread of its own: a busy engine answers late, and a probe at once."""

    def __init__(self, creator: AgentCreator) -> None:
        self._creator = creator
        self._lock = threading.Lock()
        self._why: dict[str, str] = {}
        self._asked_s, self._is_asking = time.monotonic(), False

    def why(self) -> dict[str, str]:
        """What did not answer, as far as it is known; another question is asked where the last one is old."""
        with self._lock:
            age_s = time.monotonic() - self._asked_s
            if self._is_asking and age_s > LATE_S:
                return {"model": f"it has not answered for {age_s:.0f} s"}
            if not self._is_asking and age_s > READY_S:
                self._asked_s, self._is_asking = time.monotonic(), True
                threading.Thread(target=self._ask, name="ready", daemon=True).start()
            return dict(self._why)

    def _ask(self) -> None:
        try:
            self._creator.check_ready()
            why = {}
        except Exception as error:  # whatever it is, it is not ready
            why = {"sandbox" if isinstance(error, SandboxError) else "model": f"{type(error).__name__}: {error}"}
        with self._lock:
            self._why, self._is_asking = why, False


def keys_path(config: ServiceConfig) -> Path:
    """The file of the keys."""
    return Path(config.keys) if config.keys else Path(config.store, "keys.toml")


def _metrics_app(metrics: ServiceMetrics) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_api_route("/metrics", lambda: Response(metrics.text(), media_type=CONTENT_TYPE), methods=["GET"])
    return app


def _temperature(given: str | None) -> float:
    """Of a completion; greedy unless the client asks otherwise, as the first project of every job is."""
    try:
        value = float(given or 0.0)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise EndpointError(400, "invalid_value", "X-Agent-RL-Temperature is no number from 0 to 100")
    return value


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
