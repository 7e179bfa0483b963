"""The math environment: word problems, with the tools and rewards of `qa_env.py`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_rl.config import validate_section
from agent_rl.data.splits import take
from agent_rl.envs.base import Row
from agent_rl.envs.demonstrations import Demonstration
from agent_rl.envs.math.demonstrations import demonstrations
from agent_rl.envs.math.generate import generate_tasks
from agent_rl.envs.qa_env import QAEnvFactory, QAEnvOptions


class MathEnvFactory(QAEnvFactory):
    def demonstrations(self, seed: int, *, faulty_share: float) -> Iterator[Demonstration]:
        return demonstrations(seed, faulty_share=faulty_share)

    def task_files(self, seed: int, num_train: int | None, num_eval: int | None) -> Mapping[str, Sequence[Row]]:
        return {
            "train": take(generate_tasks(seed, ["train"]), num_train or 400, "train"),
            "eval": take(generate_tasks(seed, ["eval"]), num_eval or 150, "eval"),
        }


def make_math_factory(options: dict[str, Any], seed: int) -> MathEnvFactory:
    """`env.name: math_qa`."""
    return MathEnvFactory(validate_section(QAEnvOptions, options, source="config", prefix="env.options"))
