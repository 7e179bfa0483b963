"""A fake of the classic API of `verifiers`: environments, rubrics and a rollout with the package's order of calls."""

import importlib
import inspect
import json
from abc import ABC, abstractmethod
from typing import Any

from .types import ChatMessage, Response, Tool

__version__ = "fake"


class Error(Exception):
    pass


class OverlongPromptError(Error):
    pass


class Client(ABC):
    def __init__(self, client_or_config: Any) -> None:
        self._client = client_or_config

    @abstractmethod
    def setup_client(self, config: Any) -> Any: ...

    @abstractmethod
    async def get_native_response(self, *arguments: Any) -> Any: ...


class State(dict):
    pass


def stop(function: Any) -> Any:
    function.stop = True
    return function


class Rubric:
    def __init__(self, funcs: list[Any], weights: list[float] | None = None) -> None:
        self.funcs, self.weights = funcs, weights or [1.0] * len(funcs)

    @property
    def has_group_rewards(self) -> bool:
        return any("completions" in inspect.signature(func).parameters for func in self.funcs)

    async def score_rollout(self, state: State) -> None:
        given = {**state["input"], "completion": state["completion"], "prompt": state["prompt"], "state": state}
        state["metrics"] = {}
        for func in self.funcs:
            names = inspect.signature(func).parameters
            takes_any = any(each.kind is each.VAR_KEYWORD for each in names.values())
            try:
                value = func(**(given if takes_any else {key: given[key] for key in names}))
                state["metrics"][func.__name__] = float(await value if inspect.isawaitable(value) else value)
            except Exception:  # as in the package, which logs it
                state["metrics"][func.__name__] = 0.0
        state["reward"] = sum(w * v for w, v in zip(self.weights, state["metrics"].values(), strict=True))

    async def cleanup(self, state: State) -> None:
        state["cleaned"] = True


class MultiTurnEnv:
    def __init__(
        self,
        dataset: Any,
        rubric: Rubric,
        *,
        eval_dataset: Any = None,
        system_prompt: str | None = None,
        max_turns: int = -1,
        tool_defs: list[Tool] | None = None,
    ) -> None:
        system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        rows = [{"prompt": [*system, {"role": "user", "content": row["question"]}], **row} for row in dataset]
        self.rows, self.rubric, self.max_turns, self.tool_defs = rows, rubric, max_turns, tool_defs
        self.eval_rows = eval_dataset

    @property
    def requires_group_rollouts(self) -> bool:
        return self.rubric.has_group_rewards

    def get_dataset(self) -> list[dict[str, Any]]:
        return self.rows

    def build_eval_dataset(self) -> Any:
        return self.eval_rows

    def get_eval_dataset(self) -> Any:
        return self.eval_rows

    async def setup_state(self, state: State) -> State:
        return state

    async def get_prompt_messages(self, state: State) -> list[Any]:
        if not state["trajectory"]:
            return state["prompt"]
        last = state["trajectory"][-1]
        messages = [*last["prompt"], *last["completion"]]
        return [*messages, *await self.env_response(messages, state)]

    async def is_completed(self, state: State) -> bool:
        stops = [each for _, each in inspect.getmembers(self, inspect.ismethod) if hasattr(each, "stop")]
        is_full = 0 < self.max_turns <= len(state["trajectory"])
        is_over = state.get("error") or state.get("too_long") or state.get("final_env_response")
        return bool(is_full or is_over) or any([await each(state=state) for each in stops])

    async def rollout(self, input: Any, client: Client, model: str, sampling_args: Any = None) -> State:
        prompt = [ChatMessage(**each) for each in input["prompt"]]
        state = State(input=input, prompt=prompt, trajectory=[], info=input.get("info"), client=client)
        state = await self.setup_state(state)
        while not await self.is_completed(state):
            try:
                prompt = await self.get_prompt_messages(state)
                prompt = [each if isinstance(each, ChatMessage) else ChatMessage(**each) for each in prompt]
                if state.get("final_env_response") is not None:
                    continue
                response: Response = await client.get_response(
                    prompt, model, sampling_args, self.tool_defs, state=state
                )
                fields = response.message.model_dump(exclude={"finish_reason", "is_truncated"})
                state["trajectory"].append({"prompt": prompt, "completion": [ChatMessage(**fields)]})
            except OverlongPromptError:
                state["too_long"] = True
            except Error as error:
                state["error"] = error
        steps = state["trajectory"]
        said = [*steps[-1]["prompt"], *steps[-1]["completion"]][len(state["prompt"]) :] if steps else []
        state["completion"] = [*said, *(state.get("final_env_response") or [])]
        return state


class SingleTurnEnv(MultiTurnEnv):
    def __init__(self, **options: Any) -> None:
        super().__init__(max_turns=1, **options)


class ToolEnv(MultiTurnEnv):
    def __init__(self, tools: list[Any], max_turns: int = 10, **options: Any) -> None:
        kinds = {int: "integer", str: "string"}
        specs = []
        for tool in tools:
            properties = {key: {"type": kinds[kind]} for key, kind in tool.__annotations__.items() if key != "return"}
            parameters = {"type": "object", "properties": properties, "required": list(properties)}
            specs.append(Tool(name=tool.__name__, description=tool.__doc__, parameters=parameters))
        self.tool_map = {tool.__name__: tool for tool in tools}
        super().__init__(max_turns=max_turns, tool_defs=specs, **options)

    @stop
    async def no_tools_called(self, state: State) -> bool:
        return bool(state["trajectory"]) and not state["trajectory"][-1]["completion"][-1].tool_calls

    async def env_response(self, messages: list[Any], state: State) -> list[Any]:
        answers = []
        for call in messages[-1].tool_calls:
            try:
                text = str(self.tool_map[call.name](**json.loads(call.arguments)))
            except Exception as error:
                text = f"{error}"
            answers.append({"role": "tool", "content": text, "tool_call_id": call.id})
        return answers


def load_environment(env_id: str, **env_args: Any) -> Any:
    try:
        return importlib.import_module(env_id.replace("-", "_")).load_environment(**env_args)
    except ImportError as error:
        raise ValueError(f"Could not import '{env_id}' environment.") from error
    except Exception as error:
        raise RuntimeError(f"Failed to load environment '{env_id}': {error}") from error
