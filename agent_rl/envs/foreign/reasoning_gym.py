"""`env.name: reasoning_gym`: the generated questions of Reasoning Gym, each scored by its data set's own rule.

Task files hold the questions with what their scorers need, because some generators make other questions in another
process. Not here: which answers a scorer may read (`harmless.py`), the process that scores (`scorer.py`).
"""

import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from agent_rl.agent.messages import Message
from agent_rl.config import validate_section
from agent_rl.data.splits import take
from agent_rl.data.tasks import Task
from agent_rl.envs.base import AgentEnv, EnvFactory, Row, Solution, StepResult
from agent_rl.envs.failure_modes import QUESTION_RULES
from agent_rl.envs.foreign.common import ForeignOptions, import_package, to_reward
from agent_rl.envs.foreign.harmless import is_harmless
from agent_rl.envs.foreign.scorer import Scorer, packed, unpacked
from agent_rl.envs.qa_env import NO_ANSWER, final_answer
from agent_rl.errors import ConfigError, DataError, nearest_or_all
from agent_rl.seeds import derive_seed

PROMPT = "Solve the problem. Then write Answer: and the answer alone."
_OPENING, _CLOSING = "<answer>", "</answer>"
_TAKES_ALL = ("game_of_life_halting",)
"""Scored by `bool` of the answer's text, so every answer counts as right."""
_SPARE = 4
"""Items generated for each that is wanted, since some repeat and held-out ones may not be among the others."""


def _by_name(value: Any) -> Any:
    """A name, or a list of names -> a mapping of names to parameters."""
    names = [value] if isinstance(value, str) else value
    return {name: {} for name in names} if isinstance(names, list) else value


class ReasoningGymOptions(ForeignOptions):
    """`env.options` of `reasoning_gym`."""

    dataset: Annotated[dict[str, dict[str, Any]], BeforeValidator(_by_name), Field(min_length=1)]
    """A data set, a list of them, or a mapping of each to its parameters: `{spell_backward: {max_word_len: 5}}`. They
    take turns in task files."""
    system_prompt: str | None = PROMPT
    """The first message; null: the conversation begins with the question."""


class ReasoningGymEnv(AgentEnv):
    """One question."""

    def __init__(self, factory: "ReasoningGymFactory") -> None:
        self._factory = factory

    def reset(self, task: Task) -> list[Message]:
        self._task = task
        system = self._factory.options.system_prompt
        return [*([] if system is None else [Message.system(system)]), Message.user(task["question"])]

    def step(self, message: Message) -> StepResult:
        tagged = _in_last_tags(message.content)
        answer = final_answer(message.content) if tagged is None else tagged
        reward, note = self._factory.score(self._task, answer)
        # Exactly, for this is no sum: a data set gives 0.9999999999999999 for a word with more letters.
        success = float(reward >= self._factory.options.success_at)
        parts = {self._task["dataset"]: reward, "success": success}
        return StepResult(reward=reward, reward_parts=parts, terminated=True, info={"prediction": answer, **note})


class ReasoningGymFactory(EnvFactory):
    """Opens the package, and each data set once for each of its parameters; scorers run one at a time.

    The package's own run in a process with limits, for there are answers on which they run without end or fill the
    memory. A data set that somebody has added to it is scored here, where its code is.
    """

    failure_rules = QUESTION_RULES
    own_tools = ()

    def __init__(self, options: ReasoningGymOptions) -> None:
        self.options = options
        self._package = import_package("reasoning_gym", "reasoning-gym")
        self._known = import_package("reasoning_gym.factory", "reasoning-gym").DATASETS
        self._opened: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._scorer = Scorer()
        for name, parameters in options.dataset.items():
            self._open(name, parameters, f"env.options.dataset.{name}")

    def __call__(self) -> AgentEnv:
        return ReasoningGymEnv(self)

    def score(self, task: Task, answer: str) -> tuple[float, dict[str, Any]]:
        """The score of an answer, and a note where its scorer failed or was not allowed to read it."""
        name, parameters = task["dataset"], task.get("parameters", {})
        dataset = self._open(name, parameters, "a row's dataset")
        is_read = is_harmless(name, answer, task["answer"] or "")
        given = answer if is_read else None
        if type(dataset).__module__.partition(".")[0] == "reasoning_gym":
            entry = {key: task[key] for key in ("question", "answer", "metadata")}
            try:
                score = self._scorer.score(name, parameters, given, entry)
            except (RuntimeError, TimeoutError) as error:
                return 0.0, {"scorer_error": str(error)}
        else:
            with self._lock:
                try:
                    score = dataset.score_answer(given, self.entry(task))
                except Exception as error:  # the boundary of another's code: scorers raise on what is no answer
                    return 0.0, {"scorer_error": f"{type(error).__name__}: {error}"}
        return to_reward(score, f"reasoning_gym's {name}"), {} if is_read else {"refused": True}

    def entry(self, task: Task) -> dict[str, Any]:
        """What the package's scorer takes: the question as its generator made it."""
        return {"question": task["question"], "answer": task["answer"], "metadata": unpacked(task["metadata"])}

    def check_task(self, task: Task, where: str) -> None:
        wanted = {"dataset": str, "question": str, "answer": str | None, "metadata": dict}
        for key, kind in wanted.items():
            if not isinstance(task.get(key, ...), kind):
                raise DataError(f"{where}: {key} is {task.get(key)!r:.80}; make the rows with agent-rl prepare-tasks")
        if not isinstance(task.get("parameters", {}), dict):
            raise DataError(f"{where}: parameters is {task['parameters']!r:.80}; make it an object, or leave it out")
        try:
            self._open(task["dataset"], task.get("parameters", {}), where)
        except ConfigError as error:
            raise DataError(str(error)) from None

    def solutions(self, task: Task) -> list[Solution]:
        """The generator's own answer, where it has one, and a wrong one."""
        answer = task["answer"]
        wrong = {"True": "False", "False": "True"}.get(str(answer), NO_ANSWER)
        made = [Solution(name="wrong answer", messages=(Message.assistant(f"Answer: {wrong}"),), succeeds=False)]
        if answer is not None:
            right = Message.assistant(f"Answer: {answer}")
            made.insert(0, Solution(name="reference", messages=(right,), succeeds=True))
        return made

    def task_files(self, seed: int, num_train: int | None, num_eval: int | None) -> Mapping[str, Sequence[Row]]:
        seen: set[str] = set()
        counts = {"train": num_train or 400, "eval": num_eval or 150}
        return {split: take(self._rows(seed, split, count, seen), count, split) for split, count in counts.items()}

    def describe(self) -> dict[str, Any]:
        return {"reasoning_gym": getattr(self._package, "__version__", None)}

    def close(self) -> None:
        self._scorer.close()

    def _rows(self, seed: int, split: str, count: int, seen: set[str]) -> Iterator[Task]:
        """Rows of all data sets by turns, whose questions are not in `seen`."""
        of_each = [self._rows_of(name, seed, split, count, seen) for name in self.options.dataset]
        rows = itertools.chain.from_iterable(itertools.zip_longest(*of_each))
        yield from (row for row in rows if row is not None)

    def _rows_of(self, name: str, seed: int, split: str, count: int, seen: set[str]) -> Iterator[Task]:
        parameters = self.options.dataset[name]
        size = _SPARE * count
        made = self._package.create_dataset(
            name, seed=derive_seed("reasoning_gym", seed, split, name) >> 32, size=size, **parameters
        )
        for index in range(size):
            try:
                entry = made[index]
            except Exception as error:  # parameters that pass its checks and leave nothing to ask
                raise ConfigError(
                    f"env.options.dataset.{name}: question {index} cannot be made with these parameters ({error})"
                ) from None
            if (question := f"{name}: {entry['question']}") in seen:
                continue
            seen.add(question)
            content = {key: entry[key] for key in ("question", "answer")} | {"metadata": packed(entry["metadata"])}
            row = {"task_id": f"{name}-{split}-{seed}-{index:05d}", "dataset": name, **content}
            yield row | ({"parameters": parameters} if parameters else {})

    def _open(self, name: str, parameters: dict[str, Any], where: str) -> Any:
        """The data set, for its scorer. ConfigError for an unknown one and for parameters that it refuses."""
        key = json.dumps([name, parameters], sort_keys=True)
        with self._lock:
            if key in self._opened:
                return self._opened[key]
            if name not in self._known:
                raise ConfigError(f"{where}: Reasoning Gym has no data set {name!r}{nearest_or_all(name, self._known)}")
            if name in _TAKES_ALL:
                raise ConfigError(f"{where}: the scorer of {name} takes every answer for right; leave it out")
            for taken, by in (("seed", "--seed"), ("size", "--num-train and --num-eval")):
                if taken in parameters:
                    raise ConfigError(f"{where}: {taken} is set by {by} of agent-rl prepare-tasks; remove it")
            try:
                self._opened[key] = self._package.create_dataset(name, seed=0, size=1, **parameters)
            except Exception as error:  # each data set checks its own parameters, most by an assertion
                raise ConfigError(f"{where}: {name} refuses its parameters ({error or type(error).__name__})") from None
            return self._opened[key]


def _in_last_tags(text: str) -> str | None:
    """What stands in the last pair of tags; None without one."""
    opening = text.rfind(_OPENING, 0, max(0, text.rfind(_CLOSING)))
    if opening < 0:
        return None
    return text[opening + len(_OPENING) : text.index(_CLOSING, opening)].strip()


def make_reasoning_gym_factory(options: dict[str, Any], seed: int) -> ReasoningGymFactory:
    """`env.name: reasoning_gym`."""
    return ReasoningGymFactory(validate_section(ReasoningGymOptions, options, source="config", prefix="env.options"))
