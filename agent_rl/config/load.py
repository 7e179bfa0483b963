"""Reading a configuration: one YAML file, `section.key=value` overrides, one sentence for whatever is wrong.

Not here: what the keys are.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agent_rl.config.base import keys_called
from agent_rl.config.complaints import misplaced, sentence
from agent_rl.config.root import Config
from agent_rl.config.yaml_text import MAX_DEPTH, parse_settings, read_settings
from agent_rl.errors import ConfigError
from agent_rl.redacted import redacted
from agent_rl.registry import import_module, import_working_folder
from agent_rl.resources import find

_SHOWN_CHARS = 200
ModelT = TypeVar("ModelT", bound=BaseModel)
KINDS = {
    "configs/nat_grpo.yaml": (
        "a training",
        {"run", "data", "env", "rollout", "algorithm", "critic", "train", "eval", "log", "checkpoint"},
    ),
    "configs/serve.yaml": ("serving", {"planner", "writes", "creation", "checker", "service"}),
    "configs/machines/8xh100.yaml": ("a machine", {"gpus", "gpu", "gpu_memory_gib", "memory_gib", "server_gpus"}),
    "configs/accelerate/ddp_8gpu.yaml": ("a launcher", {"compute_environment", "distributed_type", "machine_rank"}),
}
"""What YAML files here configure, by an example, and keys that no other kind has."""
_ANY = "*"
_FILE_KEYS = ("data.train_path", "data.eval_path", "model.path", "tools.search.corpus_path")
_FILE_KEYS += tuple(
    f"env.options.environments.{_ANY}.{key}" for key in ("train_path", "eval_path", "tools.search.corpus_path")
)


def load_config(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """Read a YAML file, apply `section.key=value` overrides in order, and validate.

    Values of overrides are YAML, so `train.steps=5` is an int and `eval.temperatures=[0]` a list.
    Raises ConfigError with one sentence for a missing file, bad YAML, an unknown key or a bad value.
    """
    path = find(path)
    raw = read_yaml(path)
    for text in overrides:
        apply_override(raw, text)
    find_files(raw)
    return parse_config(raw, source=str(path), overrides=overrides)


def find_files(raw: dict[str, Any]) -> None:
    """Replace paths of shipped files by where they are, if the working directory has none of them."""
    for key in _FILE_KEYS:
        *parents, name = key.split(".")
        nodes: list[Any] = [raw]
        for parent in parents:
            nodes = [
                child
                for node in nodes
                if isinstance(node, dict)
                for child in (node.values() if parent == _ANY else [node.get(parent)])
            ]
        for node in nodes:
            given = node.get(name) if isinstance(node, dict) else None
            if isinstance(given, str) and (found := find(given)) != Path(given):
                node[name] = str(found)


def parse_config(raw: dict[str, Any], *, source: str, overrides: Sequence[str] = ()) -> Config:
    """Import the plug-ins of a plain mapping and validate it; `source` names it in errors, of keys that came from one
    of the `overrides` that override.

    An unknown estimator or loss may be registered later, so that `Config.check_functions` finds it at the start.
    """
    import_plugins(raw.get("plugins"), source)
    config = validate_section(Config, raw, source=source, prefix="", overrides=overrides)
    try:
        config.check_functions(are_all_registered=False)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return config


def import_plugins(plugins: Any, source: str) -> None:
    """Import the modules that `plugins` names; what is no list of names is left to the validation.

    ConfigError, beginning with `source`, for a module that cannot be imported.
    """
    import_working_folder()
    for name in plugins if isinstance(plugins, list | tuple) else ():
        if isinstance(name, str):
            try:
                import_module(name)
            except ConfigError as error:
                raise ConfigError(f"{source}: plugins: {error}") from error


def validate_section(
    model: type[ModelT], raw: dict[str, Any], *, source: str, prefix: str, overrides: Sequence[str] = ()
) -> ModelT:
    """Validate a free-form sub-section (such as `env.options`) against `model`, with the same error sentences."""
    if complaint := misplaced(model, raw, prefix):
        raise ConfigError(f"{_origin(complaint.partition(' = ')[0], overrides) or source}: {complaint}")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        detail = error.errors()[0]
        key = ".".join(str(part) for part in detail["loc"] if "[" not in str(part))
        origin = _origin(key, overrides, is_unknown=detail["type"] == "extra_forbidden") or source
        raise ConfigError(sentence(detail, origin, root=model, prefix=prefix)) from None


def _origin(key: str, overrides: Sequence[str], *, is_unknown: bool = False) -> str:
    """The override that gave a key its value, or made an unknown section, without the value, which may hold secrets;
    empty for none."""
    names = [text.partition("=")[0].strip() for text in reversed(overrides)]
    about = (name for name in names if f"{key}.".startswith(f"{name}.") or (is_unknown and name.startswith(f"{key}.")))
    found = next(about, "")
    return f"override of {found:.{_SHOWN_CHARS}}" if found else ""


def read_yaml(path: Path, *, example: str = "configs/nat_grpo.yaml") -> dict[str, Any]:
    """The mapping of a YAML file. ConfigError for what is none, or configures something else than the file `example`,
    which is one of `KINDS`."""
    if path.is_dir():
        names = ", ".join(sorted(map(str, path.glob("*.yaml")))[:8])
        raise ConfigError(f"{path} is a folder; name a YAML file, such as {names or example}")
    if not path.is_file():
        raise ConfigError(f"{path}: no such config file; the shipped ones are in {Path(example).parent}/")
    raw = read_settings(path)
    if not isinstance(raw, dict):
        found = type(raw).__name__
        raise ConfigError(f"{path}: expected a mapping of sections, got {found}; see {example}")
    wanted, own = KINDS[example]
    for kind, keys in KINDS.values():
        if raw.keys() & keys and not raw.keys() & own:
            key = next(key for key in raw if key in keys)
            raise ConfigError(
                f"{path} configures {kind} (it has {key!r}), expected a file that configures {wanted}; give one like "
                f"{example}"
            )
    return raw


def apply_override(
    raw: dict[str, Any],
    text: str,
    *,
    form: str = "section.key=value",
    example: str = "train.steps=20",
    root: type[BaseModel] = Config,
) -> None:
    """Set the key that `text` names, in place. ConfigError for a text that is not of the `form`.

    `root` has the keys that the error may offer.
    """
    key, found, value = text.partition("=")
    parts = key.strip().split(".")
    is_top_level = parts == ["plugins"]
    short = value[:_SHOWN_CHARS]
    shown = f"{key[:_SHOWN_CHARS] + found + _redacted_at(parts, short)!r:.{_SHOWN_CHARS}}"
    is_long_enough = len(parts) > form.count(".") or is_top_level
    if not found or not is_long_enough or len(parts) > MAX_DEPTH or not all(parts):
        named = keys_called(key, root) if len(parts) == 1 else []
        hint = f"; did you mean {' or '.join(named)}?" if found and named else f", for example {example}"
        raise ConfigError(f"override {shown}: expected {form}{hint}")
    parsed = parse_settings(value, f"override {shown}")
    node = raw
    for part in parts[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"override {shown}: {part!r:.60} is a single value, it has no key below it")
    node[parts[-1]] = parsed


def _redacted_at(parts: list[str], value: str) -> str:
    """The value as it may be shown at its place."""
    parts = [part[:_SHOWN_CHARS] for part in parts[:MAX_DEPTH]]
    nested: Any = value
    for part in reversed(parts):
        nested = {part: nested}
    hidden = redacted(nested)
    while isinstance(hidden, dict):
        (hidden,) = hidden.values()
    return str(hidden)
