"""`GRPOTrainer(model, reward_funcs, train_dataset=...)`: a configuration and an environment of what is given in Python.

The environment is `prompts` (`envs/prompt_env.py`), and the configuration records functions and tools by their import
paths. Not here: opening what they name (`run_parts.py`).
"""

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_rl.config import Config, parse_config, validate_section
from agent_rl.config.load import find_files
from agent_rl.core.run.unfinished import holds_a_step
from agent_rl.core.run_parts import RunRequest
from agent_rl.data.tasks import read_tasks
from agent_rl.envs.prompt_env import PromptEnvFactory, PromptEnvOptions
from agent_rl.errors import ConfigError, nearest
from agent_rl.registry import REWARDS, TOOLS
from agent_rl.renamed import TOOL_ALIASES, hint
from agent_rl.rewards import RewardSum, reward_of
from agent_rl.tools.base import BaseTool
from agent_rl.tools.decorator import make_tool

ENVIRONMENT = "prompts"
DEFAULTS: Mapping[str, Any] = {"policy.type": "huggingface", "train.steps": 100, "train.learning_rate": 1e-6}
"""Keys that have another default than in a file, or none there; `run.name` is made of the model's name besides."""
_ARGUMENTS = ("model", "reward_funcs", "train_dataset", "eval_dataset", "tools", "reward_weights", "args")
_ELSEWHERE = {
    "peft_config": "give args={'model.lora.rank': 16}",
    "quantization_config": "give args={'model.lora.rank': 16, 'model.load_in_4bit': True}",
    "processing_class": "the tokenizer is read from the model's folder",
    "callbacks": "give functions to train(on_step=..., on_evaluation=...)",
    "optimizers": "args has train.learning_rate, train.betas and train.weight_decay",
    "environment_factory": "name the class in a configuration, env.name: trl_environment "
    "(docs/environments_of_others.md)",
    "rollout_func": "give an environment to GRPOTrainer.from_config(config, env_factory=...)",
}
"""Arguments that TRL's trainer has and this one does not, each with what to do."""


def quick_run(
    model: Any,
    reward_funcs: Any,
    data: tuple[Any, Any],
    tools: Any,
    reward_weights: Any,
    args: Any,
    unknown: Mapping[str, Any],
) -> RunRequest:
    """What a call of `GRPOTrainer` asks for; `data` are its `train_dataset` and `eval_dataset`.

    ConfigError for what is wrong in it; rows are checked later. Nothing is written.
    """
    if isinstance(model, Config) or isinstance(reward_funcs, Config):
        raise ConfigError("GRPOTrainer: got a Config; write GRPOTrainer.from_config(config), or give it as args")
    template_values = unknown.get("chat_template_kwargs")
    for name in unknown:
        if name == "chat_template_kwargs":
            continue
        if name in _ELSEWHERE:
            raise ConfigError(f"{name}: GRPOTrainer takes none here; {_ELSEWHERE[name]}")
        raise ConfigError(
            f"GRPOTrainer takes no {name!r}"
            f"{nearest(name, _ARGUMENTS) or hint(name) or '; settings of a run go into args, by key'}"
        )
    train_dataset, eval_dataset = data
    reward = reward_of(reward_funcs, weights=reward_weights)
    if not any(reward.weights):
        raise ConfigError("reward_weights: all are 0, so that every reply is worth the same; give one that is not")
    given_tools, used = _read_tools(tools)
    raw = _settings(args)
    _set_environment(raw, reward_funcs, reward)
    _set_model(raw, model)
    if template_values is not None:
        raw["model"]["chat_template_kwargs"] = template_values
    _set_tools(raw, used)
    _set_paths(raw, train_dataset, eval_dataset)
    if not isinstance(args, Config):
        _set_defaults(raw)
    find_files(raw)
    config = parse_config(raw, source="args")
    options = validate_section(PromptEnvOptions, config.env.options, source="args", prefix="env.options")
    factory = PromptEnvFactory(options, reward)
    return RunRequest(
        config=config,
        env_factory=factory,
        train_rows=None if config.data.train_path else train_dataset,
        eval_rows=_eval_rows(config, factory, eval_dataset),
        given_tools=given_tools,
        are_in_config=True,
        names=("train_dataset", "eval_dataset"),
    )


def _settings(args: Any) -> dict[str, Any]:
    """The sections of `args`: of a configuration, or of a dictionary of dotted keys."""
    if isinstance(args, Config):
        return args.model_dump(mode="json")
    if args is None:
        args = {}
    if not isinstance(args, Mapping):
        raise ConfigError(
            f"args: got {args!r:.80}, a {type(args).__name__}; expected a dictionary of keys such as "
            "{'train.steps': 20}, or a Config"
        )
    raw: dict[str, Any] = {}
    for key, value in args.items():
        parts = key.split(".") if isinstance(key, str) else []
        if not parts or not all(parts):
            raise ConfigError(f"args: the key {key!r:.80} is none of a configuration; write section.key")
        node = raw
        for part in parts[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise ConfigError(f"args: {key!r:.80} is below {part!r:.60}, which is a single value; keep one of them")
        if isinstance(node.get(parts[-1]), dict) or (
            len(parts) == 1 and key in Config.model_fields and key != "plugins"
        ):
            if not isinstance(value, Mapping):
                raise ConfigError(f"args: {key!r:.80} is a section, got {value!r:.60}; write {key}.NAME")
            node[parts[-1]] = {**node.get(parts[-1], {}), **_copied(value)}
        else:
            node[parts[-1]] = _copied(value)
    return raw


def _copied(value: Any) -> Any:
    """Sections and lists of their own, as what is given stays the caller's; a path as its text."""
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _set_model(raw: dict[str, Any], model: Any) -> None:
    section = raw.setdefault("model", {})
    named = section.get("path")
    if named is not None and (not isinstance(named, str) or not named):
        raise ConfigError(f"args: model.path is {named!r:.80}; expected a name on the Hub or a folder")
    if model is None and named is not None:
        return
    if not isinstance(model, str | Path) or not str(model):
        raise ConfigError(
            f"model: got {model!r:.80}; expected a name on the Hub or a folder (a model in memory is saved with "
            "save_pretrained, its tokenizer too)"
        )
    if named is not None and named != str(model):
        raise ConfigError(f"args: model.path is {named!r:.80}, and model is {str(model)!r:.80}; give one of them")
    section["path"] = str(model)


def _set_environment(raw: dict[str, Any], functions: Any, reward: RewardSum) -> None:
    env = raw.setdefault("env", {})
    name = env.setdefault("name", ENVIRONMENT)
    if name != ENVIRONMENT:
        raise ConfigError(
            f"args: env.name = {name!r:.80}, and rewards and rows given in Python make the environment "
            f"{ENVIRONMENT!r}; leave it out, or use GRPOTrainer.from_config"
        )
    options = env.setdefault("options", {})
    if not isinstance(options, dict):
        raise ConfigError(f"args: env.options is a section, got {options!r:.60}; write env.options.NAME")
    if "reward" in options:
        raise ConfigError("args: env.options.reward names rewards, and so does reward_funcs; leave it out")
    listed = list(functions) if isinstance(functions, list | tuple) else [functions]
    names = [each if isinstance(each, str) else _path_of(each, REWARDS.name_of(each)) for each in listed]
    options["reward"] = [{"name": each, "weight": weight} for each, weight in zip(names, reward.weights, strict=True)]


def _path_of(made: Any, registered: str | None) -> str:
    """The name of what was registered, else the import path of a function or class."""
    if registered is not None:
        return registered
    inner = getattr(made, "function", getattr(made, "func", made))
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{named.__module__}:{named.__qualname__}"


def _read_tools(tools: Any) -> tuple[dict[str, BaseTool | type[BaseTool]], list[str]]:
    """Tools by their entry in `tools.use`, and all entries: functions, tools, classes of tools, names."""
    if not isinstance(tools, list | tuple):
        raise ConfigError(f"tools: got {tools!r:.80}; expected a list of functions, tools or names of tools")
    given: dict[str, BaseTool | type[BaseTool]] = {}
    used = []
    for each in tools:
        if isinstance(each, str):
            TOOLS.get(TOOL_ALIASES.get(each, each))
            used.append(each)
            continue
        path = name = _path_of(each, TOOLS.name_of(each))
        number = 1
        while name in given:  # other tools of one class
            number += 1
            name = f"{path}#{number}"
        given[name] = _tool(each)
        used.append(name)
    return given, used


def _tool(each: Any) -> BaseTool | type[BaseTool]:
    if isinstance(each, BaseTool) or (inspect.isclass(each) and issubclass(each, BaseTool)):
        return each
    if not callable(each) or inspect.isclass(each):
        raise ConfigError(f"tools: got {each!r:.80}, a {type(each).__name__}; expected a function or a tool")
    try:
        return make_tool(each)
    except ValueError as error:
        raise ConfigError(f"tools: {error}") from None


def _set_tools(raw: dict[str, Any], used: Sequence[str]) -> None:
    section = raw.setdefault("tools", {})
    named = section.get("use", [])
    if not isinstance(named, list):
        raise ConfigError(f"args: tools.use is {named!r:.80}; expected a list of names, such as ['calculator']")
    section["use"] = [*named, *used]


def _set_paths(raw: dict[str, Any], train_dataset: Any, eval_dataset: Any) -> None:
    """Data that is named rather than given goes into the configuration."""
    data = raw.setdefault("data", {})
    for key, argument, given in (
        ("train_path", "train_dataset", train_dataset),
        ("eval_path", "eval_dataset", eval_dataset),
    ):
        named = data.get(key)
        if named is not None and given is not None:
            raise ConfigError(f"args: data.{key} is {named!r:.80}, and {argument} is given too; give one of them")
        if isinstance(given, str | Path):
            data[key] = str(given)
    if train_dataset is None and data.get("train_path") is None:
        raise ConfigError("train_dataset: got None; give rows, a file, a folder or hf://owner/name")


def _set_defaults(raw: dict[str, Any]) -> None:
    for key, value in DEFAULTS.items():
        section, _, name = key.partition(".")
        raw.setdefault(section, {}).setdefault(name, value)
    run = raw.setdefault("run", {})
    if "name" not in run:
        model = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(raw["model"]["path"]).name).strip(".-_") or "model"
        is_new = raw.get("checkpoint", {}).get("resume", "never") == "never"
        name = f"{model}-grpo"
        folder = run.get("output_dir", "runs")
        is_folder = isinstance(folder, str)  # else the configuration is refused
        run["name"] = free_name(Path(folder), name) if is_new and is_folder else name


def free_name(folder: Path, name: str) -> str:
    """`name`, with a number behind it where `folder` holds a run of that name that has done a step.

    Of several processes of a launcher each would choose for itself: there it stays as it is.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        return name
    number, chosen = 1, name
    while holds_a_step(folder / chosen):
        number += 1
        chosen = f"{name}-{number}"
    return chosen


def _eval_rows(config: Config, factory: PromptEnvFactory, eval_dataset: Any) -> Any:
    if eval_dataset is not None and not isinstance(eval_dataset, str | Path):
        if isinstance(eval_dataset, list | tuple) and not eval_dataset:
            raise ConfigError("eval_dataset: holds no row; give rows, or leave it out for no evaluation")
        return eval_dataset
    if config.data.eval_path is None or not config.eval.temperatures:
        return ()
    return read_tasks(config.data.eval_path, factory.check_task, columns=config.data.columns)
