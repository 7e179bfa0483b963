"""Two tools of one's own, a function and a class with state: `python own_tool.py`, in any folder.

What is written behind it, such as train.steps=5, overrides the configuration.
"""

import sys
from typing import Annotated

from pydantic import Field

from agent_rl import BaseTool, GRPOTrainer, ToolCall, ToolRegistry, ToolResult, load_config, register_tool, tool
from agent_rl.tools.calculator import calculator


@tool
def percent_of(percent: float, whole: Annotated[float, Field(description="What 100 percent is.")]) -> str:
    """Say how much a percentage of a number is."""
    return f"{percent * whole / 100:g}"


class RationedCalculator(BaseTool):
    """The calculator, answering a few calls an episode. To the model it looks the same."""

    name, description, parameters = calculator.name, calculator.description, calculator.parameters

    def __init__(self, calls: int) -> None:
        self.calls_left = calls

    def __call__(self, *, expression: str) -> ToolResult:
        if self.calls_left == 0:
            return ToolResult(text="error: no calls left; give your answer", ok=False)
        self.calls_left -= 1
        return calculator(expression=expression)


register_tool("rationed_calculator", lambda config: lambda task: RationedCalculator(calls=1))

registry = ToolRegistry([percent_of, RationedCalculator(calls=1)])
for name, arguments in [
    ("percent_of", {"percent": 15, "whole": 80}),
    ("percent_of", {"percent": 15}),
    ("calculator", {"expression": "5*14"}),
    ("calculator", {"expression": "70+1"}),
]:
    print(f"{name}: {registry.run(ToolCall(name=name, arguments=arguments)).text}")

own = ["run.name=own_tool", "tools.use=[rationed_calculator]", "train.steps=1", "rollout.groups_per_step=4"]
config = load_config("configs/math_grpo.yaml", [*own, "eval.temperatures=[]", *sys.argv[1:]])
with GRPOTrainer.from_config(config) as trainer:
    trainer.train()
