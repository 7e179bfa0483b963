"""Several turns: a reply of the environment, a stop condition of its own, a last message, an error of its own."""

import sys
from typing import Any

import verifiers as vf
from vf_rows import data_of


class Countdown(vf.MultiTurnEnv):
    async def setup_state(self, state: Any) -> Any:
        state["left"] = 3
        return state

    @vf.stop
    async def is_said(self, state: Any) -> bool:
        return bool(state["trajectory"]) and state["trajectory"][-1]["completion"][-1].content == "stop"

    async def env_response(self, messages: Any, state: Any, **_others: Any) -> Any:
        state["left"] -= 1
        if messages[-1].content == "fail":
            raise vf.Error("the other side is gone")
        if messages[-1].content == "bug":
            raise KeyError("oops")
        if messages[-1].content == "exit":
            sys.exit("the simulator is gone")
        last = [{"role": "user", "content": f"{state['left']} left"}]
        if state["left"] == 0:
            state["final_env_response"] = last
        return last


class Forgetful(Countdown):
    """Shows the first message and the last answer only."""

    async def get_prompt_messages(self, state: Any) -> Any:
        whole = await super().get_prompt_messages(state)
        return whole if len(whole) < 3 else [whole[0], whole[-1]]


def turns(state: Any) -> float:
    return float(len(state["trajectory"]))


def load_environment(is_forgetful: bool = False) -> Any:
    made = Forgetful if is_forgetful else Countdown
    return made(dataset=data_of([{"question": "Go.", "answer": ""}] * 4), rubric=vf.Rubric(funcs=[turns]))
