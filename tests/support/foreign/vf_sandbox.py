"""A class named as the package's own with sandboxes of its provider."""

from typing import Any

import verifiers as vf
from vf_rows import data_of


class SandboxEnv(vf.SingleTurnEnv):
    pass


def load_environment() -> Any:
    def nothing(completion: Any) -> float:
        return 0.0

    return SandboxEnv(dataset=data_of([{"question": "?", "answer": ""}]), rubric=vf.Rubric(funcs=[nothing]))
