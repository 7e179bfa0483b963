"""Values by name or by import path: environments, tools, rewards, estimators, losses, policies, chat formats, trackers.

A `Registry` holds what was registered under a name. Its built-in values are import paths, imported when one is
requested, so that a user's own `my_package.my_module:attribute` comes in by the same door.
Does not: import anything of the project but its errors and the names of other libraries.
"""

import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from agent_rl.errors import (
    SAME_MEANING,
    ConfigError,
    UserError,
    defined_at,
    ends_program,
    in_one_line,
    nearest,
    nearest_or_all,
    raised_at,
)
from agent_rl.renamed import REWARD_HINTS, TOOL_HINTS

ValueT = TypeVar("ValueT")
_MODULE = re.compile(r"\w+(\.\w+)*")


def look_up(table: Mapping[str, ValueT], name: str, *, kind: str) -> ValueT:
    """`table[name]`; ConfigError with the nearest name, or all names, if it is missing. `kind` is for the error."""
    if name not in table:
        raise ConfigError(f"unknown {kind} {name!r}{nearest_or_all(name, table)}")
    return table[name]


def import_working_folder() -> None:
    """Make modules of the current directory importable, as `python -m` does."""
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)


def import_module(name: str) -> ModuleType:
    """The module `package.module`, or that of a file `path/to/file.py`, which is imported once.

    ConfigError if it does not exist, and with file and line for what it raises while it is imported.
    """
    if not name.endswith(".py") and not _MODULE.fullmatch(name):
        raise ConfigError(f"{name!r} is not the name of a module; expected package.module, or path/to/file.py")
    try:
        return _import_file(name) if name.endswith(".py") else importlib.import_module(name)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # the boundary to a user's module
        if ends_program(error):
            raise
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{name!r}: there is no module {error.name!r}; check the path, the current directory and PYTHONPATH"
            ) from None
        raise ConfigError(f"{name!r} cannot be imported: {in_one_line(error)}{raised_at(error)}") from error


def _import_file(name: str) -> ModuleType:
    path = Path(name).resolve()
    module_name = f"agent_rl_plugin:{path}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise ConfigError(f"{name!r}: there is no such file; check the path")
        sys.modules[module_name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
    return sys.modules[module_name]


def import_object(path: str) -> Any:
    """What `module:attribute` or `path/to/file.py:attribute` names; ConfigError if that does not exist."""
    module_name, _, attribute = path.rpartition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{path!r} is not an import path; expected module:attribute")
    module = import_module(module_name)
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        hint = nearest(attribute, vars(module))
        if module_name == "__main__":
            hint = f"; it was defined in the script of a run: move it to a module and name that, my_module:{attribute}"
        raise ConfigError(f"{path!r}: module {module_name!r} has no attribute {attribute!r}{hint}") from None


def shown(function: Callable[..., Any]) -> str:
    """`" (my_env.py:43) takes (x)"`, as part of an error."""
    return f"{defined_at(function)} takes {inspect.signature(function)!s:.120}"


class Registry(Generic[ValueT]):
    """Name -> value: registered ones, built-in ones, and those of import paths."""

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, str] | None = None,
        *,
        key: str | None = None,
        num_inputs: int | None = None,
        form: str = "",
        elsewhere: Mapping[str, str] | None = None,
    ) -> None:
        """A registry whose errors call a value a `kind`, such as "policy loss".

        `builtin` maps names to import paths. `key` is the configuration key that holds a name. With `num_inputs`
        values are functions; the parameters after that many are their options; `form` shows these inputs, and
        `elsewhere` maps names of other libraries to ours, for errors.
        """
        self.kind = kind
        self.builtin = dict(builtin or {})
        self._key = key
        self._num_inputs = num_inputs
        self._form = form
        self._elsewhere = dict(elsewhere or {})
        self._entries: dict[str, tuple[ValueT, Any]] = {}
        """Values by name, each with what it was made of."""

    def register(self, name: str) -> Callable[[Any], Any]:
        """Decorator that registers a value under a name and returns it unchanged; ConfigError as for `add`."""

        def decorate(value: Any) -> Any:
            self.add(name, value)
            return value

        return decorate

    def add(self, name: str, entry: ValueT, *, source: Any = None) -> None:
        """Register `entry`, made of `source` (by default itself), which an import path may name too.

        ConfigError for a name that is taken, and for a function with options that takes `*args` or `**kwargs`.
        """
        if ":" in name:
            raise ConfigError(f"the name {name!r} of a {self.kind} has a colon, as import paths have; choose another")
        if self._is_taken(name):
            raise ConfigError(f"there is a {self.kind} {name!r} already; register yours under another name")
        self._check_signature(name, entry)
        self._entries[name] = entry, entry if source is None else source

    def _is_taken(self, name: str) -> bool:
        if name in self._entries or name not in self.builtin:
            return name in self._entries
        # A built-in module may register the name while it is imported: its attribute is not yet there.
        module, _, attribute = self.builtin[name].partition(":")
        return module not in sys.modules or hasattr(sys.modules[module], attribute)

    def _check_signature(self, name: str, entry: Any) -> None:
        if self._num_inputs is None:
            return
        try:
            signature = inspect.signature(entry)
        except (TypeError, ValueError):
            raise ConfigError(
                f"the {self.kind} {name!r} is {entry!r:.80}, expected a function {self._form}; name one"
            ) from None
        parameters = signature.parameters.values()
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
            raise ConfigError(f"the {self.kind} {name!r} takes *args or **kwargs; name each of its options instead")
        try:
            signature.bind_partial(*[None] * self._num_inputs)
        except TypeError:
            form = self._form or f"{self._num_inputs} inputs"
            raise ConfigError(f"the {self.kind} {name!r}{shown(entry)}, expected {form}; give it these") from None

    def get(self, name: str) -> ValueT:
        """The value of a registered or built-in name or of an import path.

        A path that names what was registered gives what was registered, anything else is given as it is.
        ConfigError with the nearest name, or all names, for an unknown name, and for a path that leads nowhere.
        """
        if name in self._entries:
            return self._entries[name][0]
        self.check(name)
        value = import_object(self.builtin.get(name, name))
        for entry, source in self._entries.values():
            if source is value:  # the module registered it
                return entry
        self._check_signature(name, value)
        if name in self.builtin:
            self._entries[name] = value, value
        return value

    def name_of(self, value: Any) -> str | None:
        """The name that a value was registered under, or what was registered of it; None where it was not."""
        return next((name for name, pair in self._entries.items() if any(each is value for each in pair)), None)

    def entry_of(self, source: Any) -> ValueT | None:
        """What was registered of `source`; None where nothing was."""
        return next((entry for entry, made_of in self._entries.values() if made_of is source), None)

    def check(self, name: str) -> None:
        """ConfigError unless `name` is a known name or reads like an import path; imports nothing."""
        if name not in self and ":" not in name:
            where = f" in {self._key}" if self._key else ""
            ours = self._elsewhere.get(name)
            hint = f"; here it is {ours!r}" if ours else self._hint(name)
            raise ConfigError(f"unknown {self.kind} {name!r}{where}{hint}")

    def _hint(self, name: str) -> str:
        names = sorted(self.names())
        if name.endswith(".py") or ("." in name and _MODULE.fullmatch(name) and not nearest(name, names)):
            return f"; of what is in a file or a module write {name}:NAME"
        return nearest_or_all(name, names, SAME_MEANING)

    def __contains__(self, name: str) -> bool:
        return name in self._entries or name in self.builtin

    def names(self) -> tuple[str, ...]:
        """All names: built-in ones, then registered ones in the order of registration."""
        return tuple(dict.fromkeys((*self.builtin, *self._entries)))

    def parameters_of(self, name: str) -> dict[str, inspect.Parameter]:
        """The options of the function of that name: its parameters after the inputs."""
        parameters = inspect.signature(self.get(name)).parameters
        return dict(list(parameters.items())[self._num_inputs or 0 :])

    def options_of(self, name: str) -> set[str]:
        """Names of the options of the function of that name."""
        return set(self.parameters_of(name))

    def call(self, name: str, *inputs: Any, **options: Any) -> Any:
        """The result of the function, given those of the options that it uses.

        ConfigError for an option that no function of the registry uses.
        """
        function, used = self.get(name), self.options_of(name)
        unused = options.keys() - used
        if unused:
            known = used.union(*(self.options_of(other) for other in self.names()))
            for option in sorted(unused - known):
                raise ConfigError(f"no {self.kind} has an option {option!r}{nearest(option, known)}")
        return function(*inputs, **{option: value for option, value in options.items() if option in used})


REWARDS: Registry[Any] = Registry(
    "reward",
    {
        "exact_match_reward": "agent_rl.rewards.answers:exact_match_reward",
        "qa_f1_reward": "agent_rl.rewards.answers:qa_f1_reward",
        "math_reward_string_equal": "agent_rl.rewards.answers:math_reward_string_equal",
        "math_verify": "agent_rl.rewards.latex_answers:math_verify",
        "searched_reward": "agent_rl.rewards.answers:searched_reward",
        "code_reward": "agent_rl.envs.code.rewards:code_reward",
    },
    key="env.options.reward",
    elsewhere=REWARD_HINTS,
)
"""Reward functions, see `rewards/base.py`."""

TOOLS: Registry[Any] = Registry(
    "tool",
    {
        "calculator": "agent_rl.tools.calculator:calculator",
        "search": "agent_rl.tools.search_tool:open_search",
        "answer": "agent_rl.tools.answer_tool:AnswerTool",
        **{
            name: f"agent_rl.tools.workspace_tools:{name}"
            for name in ("code_exec", "pytest_run", "file_write", "file_read")
        },
    },
    key="tools.use",
    elsewhere=TOOL_HINTS,
)
"""Tools, classes of tools, and openers `(ToolsConfig) -> (Task) -> tool`, see `tools/toolset.py`."""

_ESTIMATORS = ("rloo", "remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo", "gae", "opo", "maxrl")
ADVANTAGE_ESTIMATORS: Registry[Callable[..., Any]] = Registry(
    "advantage estimator",
    {name: f"agent_rl.algorithms.estimators:{name}" for name in ("grpo", *_ESTIMATORS, "pass_at_k")},
    key="algorithm.advantage",
    num_inputs=1,
    form="(step)",
)
"""Estimators `(StepRewards, *, options) -> Credit`, see `algorithms/estimators.py`."""

POLICY_LOSSES: Registry[Callable[..., Any]] = Registry(
    "policy loss",
    {
        "ppo_clip": "agent_rl.algorithms.policy_losses:policy_loss",
        "cispo": "agent_rl.algorithms.policy_losses:cispo_loss",
    },
    key="algorithm.loss",
    num_inputs=4,
    form="(logprobs, old_logprobs, advantages, mask)",
)
"""Losses of tokens, `(logprobs, old_logprobs, advantages, mask, *, options) -> losses`."""

CHAT_FORMATS: Registry[Callable[..., Any]] = Registry(
    "agent type",
    {
        "hf": "agent_rl.agent.chat_format:ChatFormat",
        "react": "agent_rl.agent.react_format:ReactFormat",
        "code": "agent_rl.agent.code_format:CodeFormat",
    },
    key="agent.type",
)
"""Chat formats, made from a tokenizer."""

TRACKERS: Registry[Callable[..., Any]] = Registry(
    "tracker",
    {
        "tensorboard": "agent_rl.telemetry.trackers:TensorBoardTracker",
        "wandb": "agent_rl.telemetry.trackers:open_wandb",
        "trackio": "agent_rl.telemetry.trackers:open_trackio",
        **{
            name: f"agent_rl.telemetry.trackers:open_{name}"
            for name in ("mlflow", "comet_ml", "aim", "clearml", "dvclive", "swanlab")
        },
    },
    key="log.trackers",
)
"""Openers of trackers, see `telemetry/trackers.py`."""
