"""A session with a server of OpenEnv: what `GET /schema` says, then requests and answers over its WebSocket, `/ws`.

One session is one episode, from one thread; the server makes an environment for each. What is wrong with the server is
a ConfigError where every episode would end by it, and a ServerError, which drops an episode, otherwise.
Not here: what actions and observations mean (`openenv.py`). The package `openenv` itself is not needed.
"""

import asyncio
import json
import time
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from agent_rl.closing import Closing
from agent_rl.envs.foreign.common import import_package
from agent_rl.errors import ConfigError
from agent_rl.loop_thread import shared_loop
from agent_rl.tools.web_body import UNPACKED, WebBodyError, read_web_body

VERSIONS = "OpenEnv 0.2 or later, which answers at /schema and /ws"
_INSTALL = "'websockets>=15'"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_MAX_ANSWER_BYTES = 16 * 2**20
_WAIT_S = 0.2
"""Between tries where a server holds as many sessions as it allows."""
_LOCAL = ("localhost", "127.0.0.1", "::1")


class ServerError(Exception):
    """The server refused or broke off a request; `code` is one of OpenEnv's, or empty."""

    def __init__(self, sentence: str, code: str = "", answer: Any = None) -> None:
        super().__init__(sentence)
        self.code = code
        self.answer = answer if isinstance(answer, dict) else {}


class OpenEnvServer:
    """Where a server is; ConfigError for what is no such address, or without the package that opens WebSockets."""

    def __init__(self, url: str, timeout_s: float) -> None:
        url = url.strip()  # a block of YAML and the content of a file end with a line break
        try:
            parts = urlsplit(url)
            scheme, _ = _SCHEMES[parts.scheme], parts.port
            is_address = bool(parts.hostname) and bool(httpx.URL(url)) and bool(parts.hostname.encode("idna"))
        except (ValueError, KeyError, httpx.InvalidURL):  # UnicodeError is a ValueError
            is_address = False
        if not is_address:
            raise ConfigError(f"env.options.url = {url!r:.200}: expected an address such as http://localhost:8000")
        self.url, self.timeout_s = url, timeout_s
        self._is_local = parts.hostname in _LOCAL  # no proxy leads there
        path = parts.path.rstrip("/")
        self.socket_url = urlunsplit((scheme, parts.netloc, f"{path}/ws", "", ""))
        self._http_url = urlunsplit((scheme.replace("ws", "http"), parts.netloc, path, "", ""))
        self._client = import_package("websockets.sync.client", _INSTALL, "openenv")
        errors = import_package("websockets.exceptions", _INSTALL, "openenv")
        self.closed = errors.ConnectionClosed
        self._no_socket = (errors.InvalidHandshake, errors.InvalidMessage)

    def action_schema(self) -> dict[str, Any]:
        """The fields of an action by name, `required` ones under that key; ConfigError where nothing says so."""
        expected = f"expected a server of {VERSIONS}"
        try:
            status, body = shared_loop("openenv").result(self._get(f"{self._http_url}/schema"))
        except TimeoutError:
            raise self._down(TimeoutError(f"/schema was not answered within {self.timeout_s:g} s")) from None
        except httpx.HTTPError as error:
            raise self._down(error) from None
        except WebBodyError as error:
            raise ConfigError(f"env.options.url = {self.url!r}: /schema {error}; {expected}") from None
        try:
            schema = json.loads(body)["action"] if httpx.codes.is_success(status) else None
        except (ValueError, KeyError, TypeError, RecursionError):
            schema = None
        if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
            got = f"status {status}, {body.decode(errors='replace')!r:.80}"
            raise ConfigError(f"env.options.url = {self.url!r}: /schema gave {got}; {expected}")
        return schema

    async def _get(self, url: str) -> tuple[int, bytes]:
        """Status and body of an answer. TimeoutError, WebBodyError and what httpx raises."""
        # A limit on the whole of it: those of httpx start anew with every byte that comes.
        async with (
            httpx.AsyncClient(timeout=None, trust_env=not self._is_local) as client,
            asyncio.timeout(self.timeout_s),
            client.stream("GET", url, headers=UNPACKED) as response,
        ):
            return response.status_code, await read_web_body(response, _MAX_ANSWER_BYTES)

    def open(self) -> "OpenEnvSession":
        """A session that the server has an environment for; waits while it holds as many as it allows."""
        ends = time.monotonic() + self.timeout_s
        while True:
            session = self._connect()
            try:
                session.ask("state")
                return session
            except ServerError as error:
                session.close()
                if error.code != "CAPACITY_REACHED":
                    raise
                if time.monotonic() > ends:
                    limit = error.answer.get("max_sessions", "no more")
                    raise ConfigError(
                        f"env.options.url = {self.url!r}: the server allows {limit} sessions at a time and none ended "
                        f"within {self.timeout_s:g} s; raise max_concurrent_envs of its create_app, or lower "
                        "rollout.async_workers"
                    ) from None
            time.sleep(_WAIT_S)

    def _connect(self) -> "OpenEnvSession":
        held = ExitStack()
        try:
            socket = self._client.connect(
                self.socket_url,
                open_timeout=self.timeout_s,
                close_timeout=1.0,
                max_size=_MAX_ANSWER_BYTES,
                proxy=None if self._is_local else True,
            )
            return OpenEnvSession(self, held.enter_context(socket), held)
        except self._no_socket as error:
            raise ConfigError(
                f"env.options.url = {self.url!r}: no WebSocket at /ws ({error}); expected a server of {VERSIONS}"
            ) from None
        except OSError as error:  # TimeoutError is one
            raise self._down(error) from None

    def _down(self, error: Exception) -> ConfigError:
        reason = str(error) or type(error).__name__
        return ConfigError(
            f"env.options.url = {self.url!r}: no server answers there ({reason:.120}); start the environment's server, "
            "or correct the address"
        )


class OpenEnvSession(Closing):
    """One WebSocket; `ask("step", {...})` waits for the answer's data."""

    def __init__(self, server: OpenEnvServer, socket: Any, held: ExitStack) -> None:
        self._server, self._socket, self._held = server, socket, held

    def ask(self, kind: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
        """The data of the answer to a request; ServerError where there is none or it is an error's."""
        request: dict[str, Any] = {"type": kind} if data is None else {"type": kind, "data": data}
        where, given = f"{self._server.url}: {kind}", None
        try:
            with suppress(self._server.closed):  # what the server said before it closed is still to be read
                self._socket.send(json.dumps(request))
            given = self._socket.recv(timeout=self._server.timeout_s)
            answer = json.loads(given)
            said, content = answer["type"], answer["data"]
        except TimeoutError:
            raise ServerError(f"{where} was not answered within {self._server.timeout_s:g} s") from None
        except (self._server.closed, OSError) as error:
            raise ServerError(f"{where} was not answered: the connection broke off ({error})") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ServerError(f"{where} gave {given!r:.80}; expected a message of {VERSIONS}") from None
        if said == "error" and isinstance(content, dict):
            reason = str(content.get("message")) + _first_complaint(content.get("errors"))
            raise ServerError(f"{where} failed at the server: {reason:.300}", str(content.get("code", "")), content)
        if said != ("state" if kind == "state" else "observation") or not isinstance(content, dict):
            raise ServerError(f"{where} gave {given!r:.80}; expected a message of {VERSIONS}")
        return content

    def close(self) -> None:
        """End the session; a server that is gone has ended it."""
        with suppress(self._server.closed, OSError):
            self._socket.send('{"type": "close"}')
        self._held.close()


def _first_complaint(errors: Any) -> str:
    """Where and what pydantic found wrong first, as `: action_id: Input should be ...`."""
    try:
        return f": {'.'.join(map(str, errors[0]['loc']))}: {errors[0]['msg']}"
    except (TypeError, KeyError, IndexError):
        return ""
