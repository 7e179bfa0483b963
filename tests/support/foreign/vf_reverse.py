"""One turn, two weighted rewards, one of them async and of the row's info and the state."""

from typing import Any

import verifiers as vf
from vf_rows import data_of


def exact(completion: Any, answer: str, **_others: Any) -> float:
    return float(completion[-1].content == answer)


async def share(completion: Any, info: dict[str, Any], state: Any) -> float:
    text = completion[-1].content
    assert len(state["trajectory"]) == 1
    return text.count(info["letter"]) / max(1, len(text))


def load_environment(num_rows: int = 12) -> Any:
    rows = [
        {"question": "post"[: 1 + n % 4], "answer": "post"[: 1 + n % 4][::-1], "info": {"letter": "a", "n": n}}
        for n in range(num_rows)
    ]
    rubric = vf.Rubric(funcs=[exact, share], weights=[1.0, 0.5])
    return vf.SingleTurnEnv(dataset=data_of(rows), system_prompt="Reverse the word.", rubric=rubric)
