"""An environment that asks on after it was told that there is no room, and a rubric that fails and is cleaned up."""

from typing import Any

import verifiers as vf
from vf_rows import data_of

CLEANED: list[Any] = []


class Stubborn(vf.MultiTurnEnv):
    async def rollout(self, input: Any, client: Any, model: str, sampling_args: Any = None) -> Any:
        for _ in range(5000):
            try:
                response = await client.get_response(input["prompt"], model, sampling_args, None)
            except vf.OverlongPromptError:
                continue
            if response.message.content == "score me":
                break
        return {"trajectory": []}

    async def env_response(self, messages: Any, state: Any, **_others: Any) -> Any:
        return []


class Failing(vf.Rubric):
    async def score_rollout(self, state: Any, *_arguments: Any, **_options: Any) -> None:
        raise KeyError("no judge")

    async def cleanup(self, state: Any) -> None:
        CLEANED.append(state)


def load_environment() -> Any:
    return Stubborn(dataset=data_of([{"question": "Go.", "answer": ""}] * 4), rubric=Failing(funcs=[]))
