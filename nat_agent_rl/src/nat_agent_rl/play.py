"""Plays rows of the dataset with a workflow, one failing alone, and scores what was played.

In place of the toolkit's `run_eval`, which builds the workflow anew each time, prints a configuration that contains
itself, and ends with the first workflow that raises. Not here: what a failure is worth (`trajectory_builder.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import httpx
from jsonpath_ng import parse
from nat.builder.context import ContextState
from nat.builder.runtime_event_subscriber import pull_intermediate
from nat.data_models.config import Config
from nat.data_models.evaluator import EvalInput, EvalInputItem
from nat.data_models.finetuning import FinetuneConfig
from nat.data_models.intermediate_step import IntermediateStep
from nat.plugins.eval.runtime.builder import WorkflowEvalBuilder
from nat.runtime.session import Session, SessionManager
from pydantic import BaseModel

from nat_agent_rl.episodes import EPISODE, Episode
from nat_agent_rl.errors import FinetuneError, one_line
from nat_agent_rl.quiet import quiet_episodes


@dataclass(slots=True)
class Played:
    """One episode: the row with what the workflow answered, and what came of it."""

    episode: Episode
    item: EvalInputItem
    task: str
    """The row's id; all episodes of a row are a group."""
    error: str | None = None
    """What the workflow raised, or that it ran out of time."""
    score: float | None = None
    unscored: str | None = None
    """Why an episode that ended has no score."""
    is_endpoint_failure: bool = False


class Player:
    """A workflow that is built once, and its evaluator. `is_lost` raises when the server is gone."""

    def __init__(self, config: Config, reward: str, result_json_path: str, is_lost: Callable[[], Awaitable[Any]]):
        # `finetuning` holds the command's options, and they hold this configuration: what prints it never ends.
        alone = {"finetuning": FinetuneConfig(), "trainers": {}, "trainer_adapters": {}, "trajectory_builders": {}}
        self.config = config.model_copy(update=alone)
        self.reward = reward
        self._output_path = parse(result_json_path)
        self._is_lost = is_lost
        self._stack = AsyncExitStack()
        self._builder: WorkflowEvalBuilder | None = None

    async def close(self) -> None:
        await self._stack.aclose()

    async def play(self, plays: Sequence[Played], timeout_s: float) -> None:
        """Run the workflow for each, `eval.general.max_concurrency` at a time; a failure is noted where it happened.

        Raises FinetuneError when the server is lost, and cancels what still runs.
        """
        if self._builder is None:
            self._builder = await self._stack.enter_async_context(WorkflowEvalBuilder.from_config(self.config))
        sessions = await SessionManager.create(
            config=self.config,
            shared_builder=self._builder,
            max_concurrency=self.config.eval.general.max_concurrency,
        )
        tasks = [asyncio.create_task(self._play_one(sessions, played, timeout_s)) for played in plays]
        try:
            with quiet_episodes():
                await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        finally:
            await sessions.shutdown()

    async def score(self, plays: Sequence[Played]) -> None:
        """Have the evaluator score the episodes that ended, all at once."""
        ended = {str(played.item.id): played for played in plays if played.error is None}
        evaluate = getattr(self._builder.get_evaluator(self.reward), "evaluate_fn", None)
        if evaluate is None:
            raise FinetuneError(
                f"the evaluator {self.reward!r} of finetuning.reward_function has no evaluate_fn; name one that scores "
                "items of a dataset"
            )
        if not ended:
            return
        output = await evaluate(EvalInput(eval_input_items=[played.item for played in ended.values()]))
        for played in ended.values():
            played.unscored = f"the evaluator {self.reward!r} returned no item for it"
        for scored in output.eval_output_items:
            if (played := ended.get(str(scored.id))) is not None:
                played.score, played.unscored = _score_of(scored)

    async def _play_one(self, sessions: SessionManager, played: Played, timeout_s: float) -> None:
        is_apart = self.config.eval.general.per_input_user_id
        user = f"agent_rl-{played.episode.id}" if is_apart else "agent_rl"
        try:
            async with sessions.session(user_id=user) as session:
                await self._run_workflow(session, played, timeout_s)
        except FinetuneError:
            raise
        except Exception as error:
            is_late = isinstance(error, TimeoutError) and not str(error)
            played.error = f"no end within {timeout_s:g} s" if is_late else one_line(error)
            played.is_endpoint_failure = played.episode.endpoint_error is not None or _is_of_transport(error)
        if played.is_endpoint_failure:
            await self._is_lost()

    async def _run_workflow(self, session: Session, played: Played, timeout_s: float) -> None:
        if not session.workflow.has_single_output:
            raise FinetuneError("the workflow has no single output; train one that returns its answer at once")
        async with session.run(played.item.input_obj) as runner:
            # Behind the runner's entry, which sets all variables to what they were when the workflow was built.
            EPISODE.set(played.episode)
            ContextState.get().workflow_run_id.set(played.episode.id)
            steps = pull_intermediate()
            output = await asyncio.wait_for(runner.result(), timeout_s)
            with suppress(ValueError):
                output = runner.convert(output, to_type=str)
            played.item.output_obj = self._extracted(output)
            played.item.trajectory = [IntermediateStep.model_validate(step) for step in await steps]

    def _extracted(self, output: Any) -> Any:
        if isinstance(output, BaseModel):
            return output.model_dump_json(indent=2)
        found = self._output_path.find(output)
        if not found:
            raise ValueError(f"the output has nothing at --result_json_path {self._output_path}: {output!r:.80}")
        return found[0].value


def _is_of_transport(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, is that a request got no answer, or an error of the server's own."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, httpx.TransportError):
            return True
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code >= 500:
            return True
        if getattr(error, "type", None) == "server_error":  # how OpenAI's SDK raises an error inside of a stream
            return True
        error = error.__cause__ or error.__context__
    return False


def _score_of(scored: Any) -> tuple[float | None, str | None]:
    """Score and None, or None and why there is none.

    The toolkit's `BaseEvaluator` turns an exception of an evaluator into a score of 0 with the error as reasoning.
    """
    told = scored.reasoning.get("error") if isinstance(scored.reasoning, dict) else None
    if scored.error or (isinstance(told, str) and told.startswith("Evaluator error")):
        return None, one_line(scored.error or told)
    try:
        score = float(scored.score)
    except (TypeError, ValueError):
        return None, f"the evaluator's score is {scored.score!r:.80}, no number"
    return (score, None) if abs(score) < float("inf") else (None, f"the evaluator's score is {score}")
