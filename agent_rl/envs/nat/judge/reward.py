"""From a validation report to a reward: 0.3 tools + 0.3 integration + 0.4 workflow, a bonus for a complete agent, and a
smaller one for doing it in few turns. All weights are configuration. *Success* is reported apart from the reward.
"""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent_rl.envs.nat.judge.report import ValidationReport

Weight = Annotated[float, Field(ge=0.0)]


class RewardWeights(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tools: Weight = 0.3
    """Tool code: structure, behaviour on hidden cases, the model's own tests."""
    integration: Weight = 0.3
    """Configuration file and MCP server."""
    workflow: Weight = 0.4
    """Hidden cases through the workflow."""
    complete: Weight = 1.0
    """Bonus when every component is full and the project was submitted."""
    efficiency: Weight = 0.3
    """Most that a complete project earns for few turns."""
    efficiency_turns: Annotated[int, Field(ge=1)] = 30
    """Turns after the first over which the efficiency bonus falls to 0."""
    progress: Weight = 0.0
    """What a project that passes all visible checks (files, build, example, server, own tests) has gained, paid on the
    turns on which checks begin to pass and taken back where they fail again; costs two runs for each turn with new
    files."""

    @model_validator(mode="after")
    def _not_all_zero(self) -> Self:
        if not any(weight for name, weight in self if name != "efficiency_turns"):
            raise ValueError("all weights are 0, so that every episode is worth the same; give one above 0")
        return self


def reward_parts(
    report: ValidationReport, weights: RewardWeights, *, num_turns: int, submitted: bool
) -> dict[str, float]:
    """Named parts that sum to the reward, each already weighted."""
    success = report.complete and submitted
    saved = max(0.0, 1.0 - (num_turns - 1) / weights.efficiency_turns)
    return {
        "tools": weights.tools * report.tools,
        "integration": weights.integration * report.integration,
        "workflow": weights.workflow * report.workflow,
        "complete": weights.complete * success,
        "efficiency": weights.efficiency * saved * success,
    }
