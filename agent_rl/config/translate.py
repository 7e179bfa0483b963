"""A configuration of AgentFly, Miniagent, verl, SkyRL or TRL as one of ours, and what of it could not be translated.

Keys are those of `renamed.py`; here is how their values change. Reads YAML, JSON and commands with `key=value` or
`--key value`. Not here: whether the result makes sense, which loading it says.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_rl.config.base import flatten, flatten_keys
from agent_rl.config.complaints import wrong_value
from agent_rl.config.root import Config
from agent_rl.config.yaml_text import parse_settings
from agent_rl.errors import ConfigError, nearest_or_all
from agent_rl.renamed import LIBRARIES, REWARD_HINTS, TOOL_ALIASES, TOOL_HINTS, Renamed

Settings = Mapping[str, Any]
"""Their keys, dotted, with their values."""
_WORD = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """What became of a configuration."""

    library: str
    """The one that it was taken for."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Our keys, dotted."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Their keys that are not in `settings`, each with the reason."""
    notes: dict[str, str] = field(default_factory=dict)
    """Their keys that do not mean quite the same here, each with the difference."""


def read_foreign(text: str, source: str) -> Settings:
    """The keys of a YAML or JSON file, of a command, or of a shell script with one. ConfigError for what is neither."""
    given = _of_command(text)
    if given:
        return given
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        raw = parse_settings(text, source)
    if not isinstance(raw, dict) or not raw:
        raise ConfigError(f"{source}: found no keys; expected YAML, JSON, or a command with key=value or --key value")
    return flatten(raw)


def _of_command(text: str) -> dict[str, Any]:
    lines = [line for line in text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
    given: dict[str, Any] = {}
    for line in lines:
        try:
            words = shlex.split(line)
        except ValueError:
            return {}
        if "python" not in line and "trl" not in line and len(lines) > 1:
            continue
        for word, after in zip(words, [*words, "--"][1:], strict=True):
            if found := _WORD.fullmatch(word):
                given[found[1]] = parse_settings(found[2], f"{found[1]}=")
            elif word.startswith("--") and len(word) > 2:
                key, is_joined, value = word[2:].partition("=")
                value = value if is_joined else "true" if after.startswith("--") else after
                given[key] = parse_settings(value, word)
    return given


def translate(theirs: Settings, library: str | None = None) -> Translation:
    """Our settings for theirs. Without a `library` the one that knows most of the keys; ConfigError for none."""
    if library is None:
        known = {name: sum(key in table for key in theirs) for name, table in LIBRARIES.items()}
        library = max(known, key=lambda name: known[name])
        ours = sum(key in set(flatten_keys(Config)) for key in theirs)
        if ours > known[library]:
            raise ConfigError(f"{ours} of its keys are of this library already; give it to --config as it is")
        if not known[library]:
            raise ConfigError(f"no key of it is one of {', '.join(LIBRARIES)}: {', '.join(list(theirs)[:5])}")
    names = {name.lower(): name for name in LIBRARIES}
    if library.lower() not in names:
        raise ConfigError(f"unknown library {library!r}{nearest_or_all(library, LIBRARIES)}")
    table = LIBRARIES[names[library.lower()]]
    made = Translation(library=names[library.lower()])
    without_effect = _kl_without_effect(theirs)
    for key, value in theirs.items():
        if key not in without_effect:
            _add(made, key, value, table.get(key), theirs)
        elif without_effect[key]:
            made.left_out[key] = without_effect[key]
    _make_schedule_whole(made)
    return made


def _add(made: Translation, key: str, value: Any, renamed: Renamed | None, theirs: Settings) -> None:
    if renamed is None:
        made.left_out[key] = "no counterpart is known"
        return
    if not renamed.ours:
        made.left_out[key] = renamed.note
        return
    convert = _CONVERTED.get(renamed.ours, _CONVERTED.get(key, _same))
    try:
        found = convert(key, value, theirs)
    except (TypeError, ArithmeticError):  # a list, a text or 0 where there is a number in their files
        found = f"{value!r:.60} is no value that can be turned into ours"
    if isinstance(found, str):
        made.left_out[key] = f"{renamed.ours}: {found}"
        return
    settings = {renamed.ours if ours == "_" else ours: value for ours, value in found.items()}
    refused = next(filter(None, (wrong_value(ours, value) for ours, value in settings.items())), "")
    if refused:
        made.left_out[key] = refused
    else:
        made.settings.update(settings)
        if convert is _every and settings[renamed.ours] == 0:
            made.notes[key] = f"{renamed.ours}=0 has none in between; there is one at the end all the same"


# How values change: to a dictionary of our keys, `_` for the one of the table; or a text, why there is none.

Converted = dict[str, Any] | str


def _same(_key: str, value: Any, _theirs: Settings) -> Converted:
    return {"_": value}


def _steps(key: str, value: Any, _theirs: Settings) -> Converted:
    if "epoch" in key:
        return f"{value} epochs are epochs * rows / rollout.groups_per_step steps; count your rows"
    return {"_": value} if not isinstance(value, int) or value > 0 else "no number of steps is given"


def _every(_key: str, value: Any, _theirs: Settings) -> Converted:
    return {"_": 0 if value in (-1, None) else value}


def _one_file(_key: str, value: Any, _theirs: Settings) -> Converted:
    if not isinstance(value, list):
        return {"_": value}
    return {"_": value[0]} if len(value) == 1 else f"one file, not {len(value)}; join them"


def _minibatches(_key: str, value: Any, theirs: Settings) -> Converted:
    batch = theirs.get("data.train_batch_size", theirs.get("trainer.train_batch_size"))
    if not batch or not isinstance(value, int) or value < 1 or batch % value:
        return "the batch divided by the size of a mini-batch, which are not both known or do not divide"
    return {"_": batch // value}


def _micro_batch(key: str, value: Any, _theirs: Settings) -> Converted:
    return {"_": value} if "token" in key else "samples there, tokens here: about their number times their length"


def _window(_key: str, _value: Any, theirs: Settings) -> Converted:
    reply = theirs.get("data.max_response_length", theirs.get("max_completion_length"))
    prompt = theirs.get("data.max_prompt_length", theirs.get("max_prompt_length"))
    reply = reply or theirs.get("generator.sampling_params.max_generate_length")
    prompt = prompt or theirs.get("generator.max_input_length")
    if not isinstance(reply, int) or not isinstance(prompt, int):
        return "the whole window, prompt and all turns; choose it, in tokens"
    return {"_": prompt + reply}


def _template(_key: str, value: Any, _theirs: Settings) -> Converted:
    if str(value).endswith(".jinja"):
        return {"_": value}
    return f"{value} is a name; the template of the model's own folder is used, and for another give its .jinja file"


def _schedule(_key: str, value: Any, _theirs: Settings) -> Converted:
    return {"_": {"constant_with_warmup": "constant"}.get(value, value)}


def _place(key: str, value: Any, _theirs: Settings) -> Converted:
    place = "reward" if "reward" in key else "loss"
    return {"_": place} if value else {}


def _target(key: str, value: Any, _theirs: Settings) -> Converted:
    return {} if key.endswith(".type") else {"_": value}


def _trackers(_key: str, value: Any, _theirs: Settings) -> Converted:
    listed = value if isinstance(value, list) else [value]
    return {"_": [each for each in listed if each not in ("console", "none", None)]}


def _tools(_key: str, value: Any, _theirs: Settings) -> Converted:
    listed = value if isinstance(value, list) else [value]
    return {"_": [TOOL_ALIASES.get(each, TOOL_HINTS.get(each, each)) for each in listed]}


def _reward(_key: str, value: Any, _theirs: Settings) -> Converted:
    return {"_": REWARD_HINTS.get(value, value) if isinstance(value, str) else value}


def _resume(key: str, value: Any, theirs: Settings) -> Converted:
    if key.endswith("path"):
        return {"_": value} if value else {}
    if value in ("resume_path", "from_path") or any(theirs.get(key.rpartition(".")[0] + end) for end in _PATHS):
        return {}
    return {"_": {"disable": "never", "latest": "auto", "none": "never", None: "never"}.get(value, value)}


_PATHS = (".resume_from_path", ".resume_path")


def _aggregation(key: str, value: Any, _theirs: Settings) -> Converted:
    modes = {"grpo": "seq_mean_token_mean", "bnpo": "token_mean", "dapo": "token_mean"}
    modes |= {"dr_grpo": "seq_mean_token_sum_norm", "sequence_mean": "seq_mean_token_mean"}
    name = str(value).replace("-", "_")
    ours = modes.get(name, name)
    known = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm")
    return {"_": ours} if ours in known else f"{value} has no counterpart; {', '.join(known)}"


def _loss(_key: str, value: Any, _theirs: Settings) -> Converted:
    if value == "gspo":
        return {"algorithm.ratio_level": "sequence"}
    ours = {"vanilla": "ppo_clip", "regular": "ppo_clip", "dual_clip": "ppo_clip", "cispo": "cispo"}.get(value)
    return {"_": ours} if ours else f"{value} is no loss here; docs/algorithms.md has recipes"


def _std(_key: str, value: Any, _theirs: Settings) -> Converted:
    scales = {"group": True, "none": False, True: True, False: False}
    return {"_": scales[value]} if value in scales else f"{value}: only by the standard deviation of a group, or none"


def _clip(key: str, value: Any, theirs: Settings) -> Converted:
    both = key.rpartition(".")[2] in ("clip_ratio", "clip_range", "epsilon")
    high = any(name.endswith(("epsilon_high", "clip_ratio_high")) for name in theirs)
    return {"_": value, "algorithm.clip_high": value} if both and not high else {"_": value}


def _policy_type(key: str, value: Any, _theirs: Settings) -> Converted:
    if key == "use_vllm":
        return {"_": "vllm" if value else "huggingface"}
    return {"_": {"hf": "huggingface"}.get(value, value)}


def _batch(key: str, value: Any, theirs: Settings) -> Converted:
    size = theirs.get("num_generations", 8)
    if key != "per_device_train_batch_size":
        return {"_": value}
    whole = value * theirs.get("gradient_accumulation_steps", 1)
    if whole % size:
        return f"{whole} completions a device are no whole number of groups of {size}"
    return f"{whole // size} times the number of devices: tasks, each with {size} completions"


def _dataset(key: str, value: Any, _theirs: Settings) -> Converted:
    is_name = key == "dataset_name" and isinstance(value, str) and value.count("/") == 1
    return {"_": f"hf://{value}" if is_name and not value.startswith(".") else value}


_CONVERTED: Mapping[str, Callable[[str, Any, Settings], Converted]] = {
    "algorithm.aggregation": _aggregation,
    "algorithm.clip_low": _clip,
    "algorithm.kl.place": _place,
    "algorithm.kl.target": _target,
    "algorithm.loss": _loss,
    "algorithm.scale_by_std": _std,
    "checkpoint.every": _every,
    "checkpoint.resume": _resume,
    "critic.backbone": lambda *_: "a critic starts as a copy of the policy",
    "data.eval_path": _one_file,
    "data.train_path": lambda *given: _dataset(*given) if given[0] == "dataset_name" else _one_file(*given),
    "env.options.reward": _reward,
    "eval.every": _every,
    "eval.temperatures": lambda _key, value, _theirs: {} if value else "[] would end all evaluations",
    "log.trackers": _trackers,
    "model.chat_template": _template,
    "policy.max_context": _window,
    "policy.type": _policy_type,
    "rollout.async_workers": lambda *_: {},
    "rollout.groups_per_step": _batch,
    "tools.use": _tools,
    "train.micro_batch_tokens": _micro_batch,
    "train.minibatches": _minibatches,
    "train.schedule": _schedule,
    "train.steps": _steps,
    "vllm.servers": lambda *_: "agent-rl serve-vllm --tensor-parallel starts the servers",
}


_LOSS_KL = ("use_kl_loss", "kl_loss_coef", "kl_loss_type")
_REWARD_KL = ("use_kl_in_reward", "kl_penalty", "type", "kl_coef", "target_kl", "horizon")


def _kl_without_effect(theirs: Settings) -> dict[str, str]:
    """Their keys of a KL that is switched off, with an empty reason, and those of one that has no room here."""
    last = {key: key.rpartition(".")[2] for key in theirs if "kl" in key}
    of_loss = [key for key, name in last.items() if name in _LOSS_KL]
    of_reward = [key for key, name in last.items() if name in _REWARD_KL]
    in_loss = any(theirs[key] for key in of_loss if last[key] == "use_kl_loss")
    in_reward = any(theirs[key] for key in of_reward if last[key] == "use_kl_in_reward")
    if in_loss:
        reason = "a KL has one place here, and the loss's is taken; see algorithm.kl.place" if in_reward else ""
        return dict.fromkeys(of_reward, reason)
    if in_reward:
        has_coefficient = any(last[key] == "kl_coef" for key in of_reward)
        return dict.fromkeys(of_loss, "") if has_coefficient else {}
    is_off = {"use_kl_loss", "use_kl_in_reward"} & set(last.values())
    return dict.fromkeys([*of_loss, *of_reward], "") if is_off else {}


def _make_schedule_whole(made: Translation) -> None:
    """A learning rate brings its library's own schedule: linear to 0 in TRL, constant in the others, no warm-up."""
    if "train.learning_rate" not in made.settings:
        return
    schedule = made.settings.setdefault("train.schedule", "linear" if made.library == "TRL" else "constant")
    made.settings.setdefault("train.warmup_steps", 0)
    if schedule != "constant":
        made.settings.setdefault("train.final_learning_rate", 0.0)
