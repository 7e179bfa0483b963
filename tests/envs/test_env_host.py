"""What an actor runs, in this process: one thread per environment, errors and counters that travel."""

import asyncio
import pickle
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from fakes import EchoEnv, tiny_config

from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.config.sections import RolloutConfig
from agent_rl.envs import opening
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult
from agent_rl.envs.opening import open_environment
from agent_rl.envs.remote import cluster
from agent_rl.envs.remote.host import EnvHost, EnvReply, Failure
from agent_rl.errors import ClusterError, ConfigError, SandboxError, UserError
from agent_rl.records import StopReason

TASK = {"task_id": "t0", "question": "hi"}


def call(host: EnvHost, *words: Any) -> EnvReply:
    """The reply as it arrives on the other machine."""
    return pickle.loads(pickle.dumps(asyncio.run(host.call(*words))))


class ThreadEnv(AgentEnv):
    """Answers with the thread that it runs in, and with what it was given."""

    def reset(self, task):
        self.tools = (ToolSpec(name="look", description=""),)
        self.threads = [threading.get_ident()]
        return [Message.user(f"{task['question']} {self.case_seed}")]

    def step(self, message):
        self.threads.append(threading.get_ident())
        return StepResult(messages=(Message.tool("ok"),), info={"threads": self.threads})


class CountingFactory(EnvFactory):
    num_closed = 0

    def __init__(self) -> None:
        super().__init__(EchoEnv)
        self.count = 0.0

    def describe(self) -> dict[str, Any]:
        return {"summary": "counts"}

    def counters(self) -> Mapping[str, float]:
        self.count += 2.0
        return {"asked": self.count}

    def close(self) -> None:
        CountingFactory.num_closed += 1


def test_an_episode_runs_as_it_does_in_the_trainers_process() -> None:
    host = EnvHost(lambda: EnvFactory(ThreadEnv))
    assert host.start() == {}
    first = call(host, 5, "reset", TASK, 11)
    assert (first.value, first.tools[0].name) == ([Message.user("hi 11")], "look")
    assert call(host, 6, "reset", TASK, None).value == [Message.user("hi None")]
    threads = [call(host, 5, "step", Message.assistant("x")).value.info["threads"] for _ in range(3)][-1]
    other = call(host, 6, "step", Message.assistant("x")).value.info["threads"]
    assert len(threads) == 4 and len(set(threads)) == 1 and not set(threads) & set(other)
    cut_off = Message.assistant("y")
    assert call(host, 5, "truncate", StopReason.TIMEOUT, cut_off).value == StepResult(reward=0.0, terminated=True)
    assert host._seats[5].env.unanswered == cut_off
    for episode in (5, 6):
        assert call(host, episode, "close").failure is None
    assert host._seats == {}


def test_counters_are_told_once() -> None:
    host = EnvHost(CountingFactory)
    assert host.start() == {"summary": "counts"}
    told = []
    for episode in range(3):
        assert call(host, episode, "reset", TASK, None).counters == {}
        told.append(call(host, episode, "close").counters)
    assert told == [{"asked": 2.0}] * 3
    host.close()
    assert CountingFactory.num_closed == 1


class OwnConfigError(ConfigError):
    """Of a user's environment, unknown where the trainer runs."""


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (SandboxError("no namespaces"), SandboxError),
        (ConfigError("env.options.x is missing"), ConfigError),
        (OwnConfigError("mine"), ConfigError),
        (KeyError("x"), Exception),
        (RuntimeError("gone"), Exception),
    ],
)
def test_what_an_environment_raises_arrives_with_its_class_and_text(raised: Exception, kind: type[Exception]) -> None:
    class Failing(EchoEnv):
        def step(self, message: Message) -> StepResult:
            raise raised

    host = EnvHost(lambda: EnvFactory(Failing))
    call(host, 0, "reset", TASK, None)
    reply = call(host, 0, "step", Message.assistant("x"))
    error = reply.failure.to_error()
    assert isinstance(error, kind)
    assert isinstance(error, UserError) == isinstance(raised, UserError)
    assert f"{type(error).__name__}: {error}" == f"{type(raised).__name__}: {raised}"
    assert call(host, 0, "close").failure is None


@pytest.mark.parametrize("raised", [SystemExit("no licence"), asyncio.CancelledError("no licence")])
@pytest.mark.parametrize("where", ["reset", "step", "truncate", "close"])
def test_an_exit_or_a_leaked_cancelling_arrives_as_a_failure_and_other_episodes_go_on(
    where: str, raised: BaseException
) -> None:
    def fail(*_arguments: Any) -> None:
        raise raised

    made = iter([type("Exiting", (EchoEnv,), {where: fail})(), EchoEnv()])
    host = EnvHost(lambda: EnvFactory(made.__next__))
    calls = {
        "reset": [TASK, None],
        "step": [Message.assistant("x")],
        "truncate": [StopReason.TIMEOUT],
        "close": [],
    }

    async def both() -> dict[str, EnvReply]:
        replies = {}
        for method, arguments in calls.items():
            replies[method] = await host.call(0, method, *arguments)
            assert (await host.call(1, method, *arguments)).failure is None
        return replies

    failures = {method: reply.failure for method, reply in asyncio.run(both()).items()}
    assert [method for method, failure in failures.items() if failure is not None] == [where]
    error = failures[where].to_error()
    assert (type(error).__name__, str(error)) == (type(raised).__name__, "no licence")
    assert failures[where].call.place.startswith(f"{__file__}:")


def test_tools_that_are_none_arrive_as_a_failure_that_names_the_method() -> None:
    class NoTools(EchoEnv):
        where = "reset"

        def reset(self, task):
            self.tools = None if self.where == "reset" else ()
            return super().reset(task)

        def step(self, message):
            self.tools = None
            return super().step(message)

    class Later(NoTools):
        where = "step"

    for kind in (NoTools, Later):
        host = EnvHost(lambda kind=kind: EnvFactory(kind))
        failure = call(host, 0, "reset", TASK, None).failure
        if kind is Later:
            assert failure is None
            failure = call(host, 0, "step", Message.assistant("x")).failure
        assert failure.name == "EnvReturnError" and f"{kind.where} (" in failure.text
        assert call(host, 0, "close").failure is None


class LongStep(EchoEnv):
    def step(self, message, extra):
        return StepResult()

    async def close(self):
        return None


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_method_of_another_form_arrives_with_a_line_of_the_environment() -> None:
    host = EnvHost(lambda: EnvFactory(LongStep))
    call(host, 0, "reset", TASK, None)
    for method, arguments in [("step", [Message.assistant("x")]), ("close", [])]:
        failure = call(host, 0, method, *arguments).failure
        assert failure is not None and failure.call is not None
        assert failure.call.place.startswith(f"{__file__}:")


def test_an_environment_that_cannot_be_made_fails_at_its_reset_and_is_not_closed() -> None:
    def make() -> AgentEnv:
        raise OSError("no disk")

    host = EnvHost(lambda: EnvFactory(make))
    assert call(host, 0, "reset", TASK, None).failure == Failure("OSError", "", "no disk")
    assert call(host, 0, "close").failure is None


# What the configuration asks for


def ray_config(tmp_path, **ray: Any):
    return tiny_config(tmp_path, env={"name": "hello"}, rollout={"workers": "ray", **({"ray": ray} if ray else {})})


def test_without_ray_the_run_ends_with_what_to_install(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install -r requirements-ray\.txt"):
        open_environment(ray_config(tmp_path), EnvFactory(EchoEnv))


def test_local_workers_import_no_ray(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_in_actors", pytest.fail)
    factory = EnvFactory(EchoEnv)
    assert open_environment(tiny_config(tmp_path), factory) is factory


def test_the_keys_of_ray_are_for_ray(tmp_path) -> None:
    assert ray_config(tmp_path, actors=2).rollout.ray.actors == 2
    assert "ray" not in RolloutConfig().model_dump()
    with pytest.raises(ConfigError, match="ray has no effect with workers 'local'"):
        tiny_config(tmp_path, rollout={"ray": {"actors": 2}})
    assert issubclass(ClusterError, UserError)
