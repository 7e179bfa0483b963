"""`agent-rl config`: what a run would be configured as, and what a key means.

    agent-rl config show --config configs/math_grpo.yaml train.steps=20
    agent-rl config explain train.steps --config configs/math_grpo.yaml
    agent-rl config explain rollout

Reads the file and its plug-ins; no model is loaded and nothing is written. Not here: whether the run fits the machine
(`agent-rl plan`), configurations of other libraries (`agent-rl translate`).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_rl.config import Config, apply_override, flatten, read_yaml
from agent_rl.config.base import Section, keys_called
from agent_rl.config.help import KeyHelp, keys_of, one_line, sections
from agent_rl.config.yaml_text import dump_line
from agent_rl.envs.registry import DOMAINS, OPTIONS
from agent_rl.errors import ConfigError, nearest
from agent_rl.redacted import redacted
from agent_rl.registry import import_object
from agent_rl.renamed import called_elsewhere, hint
from agent_rl.resources import find
from agent_rl.scripts.common import read_config

app = typer.Typer(help="Show a run's whole configuration, or what a key means.", no_args_is_help=True)
Overrides = Annotated[list[str] | None, typer.Argument(help="section.key=value, applied in order.")]
_OPTIONS_KEY = "env.options"


@app.command("show")
def show(
    config: Annotated[Path, typer.Option(help="YAML file with the whole configuration.")],
    overrides: Overrides = None,
) -> None:
    """Print the configuration that a run would have, as YAML; a comment tells where each value comes from.

    `# file`, `# override` or `# default`. Keys without effect are left out, and credentials are not shown.
    """
    resolved = read_config(config, overrides or ())
    sources = _sources(config, overrides or ())
    print("\n".join(_lines(redacted(resolved.model_dump(mode="json")), sources)))


def _sources(path: Path, overrides: Sequence[str]) -> dict[str, str]:
    """`file` or `override` by key; the others are defaults."""
    raw: dict[str, Any] = read_yaml(find(path))
    changes: dict[str, Any] = {}
    for text in overrides:
        apply_override(raw, text)
        apply_override(changes, text)
    return dict.fromkeys(flatten(raw), "file") | dict.fromkeys(flatten(changes), "override")


def _lines(tree: Mapping[str, Any], sources: Mapping[str, str], prefix: str = "") -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield f"{indent}{dump_line(key)}:"
            yield from _lines(value, sources, f"{name}.")
        else:
            yield f"{indent}{dump_line(key)}: {dump_line(value)}  # {sources.get(name, 'default')}"


def _complete(incomplete: str) -> list[str]:
    return [key for key in keys_of(Config) if key.startswith(incomplete)]


@app.command("explain")
def explain(
    key: Annotated[
        str,
        typer.Argument(help="Such as train.steps, or a section such as train; default: all.", autocompletion=_complete),
    ] = "",
    config: Annotated[
        Path | None, typer.Option(help="YAML file whose value is shown too, and whose env.options are known.")
    ] = None,
) -> None:
    """Print what a key does, what it takes, its default and its names in other libraries; of a section its keys."""
    resolved = None if config is None else read_config(config)
    known = _known(resolved)
    below = {name: about for name, about in known.items() if name.startswith((f"{key}.", f"{key}[]")) or not key}
    if key in known:
        print("\n".join(_explained(key, known[key])))
        if resolved is not None and config is not None:
            print("".join(f"  {line}\n" for line in _in_file(key, resolved, config)), end="")
    elif below:
        print(
            "".join(f"{one_line(kind.__doc__)}\n" for name, kind in sections(Config) if name == key and kind.__doc__),
            end="",
        )
    else:
        raise ConfigError(f"unknown key {key!r:.200}{_advice(key, known, has_config=resolved is not None)}")
    width = max((len(name) for name in below), default=0)
    for name, about in below.items():
        print(f"{name:<{width}}  {_default(about)}  {about.about.partition('. ')[0].removesuffix('.')}")


def _known(config: Config | None) -> dict[str, KeyHelp]:
    """All keys, with those of the environment where a configuration says which."""
    known = keys_of(Config)
    path = OPTIONS.get(DOMAINS.get(config.env.name, config.env.name)) if config is not None else None
    return known if path is None else known | keys_of(import_object(path), _OPTIONS_KEY)


def _default(about: KeyHelp) -> str:
    return "must be given" if about.default is None else about.default


def _explained(key: str, about: KeyHelp) -> Iterator[str]:
    yield key
    yield f"  {about.about}"
    yield f"  takes: {about.takes}"
    yield f"  default: {_default(about)}"
    for library, names in called_elsewhere(key).items():
        yield f"  in {library}: {', '.join(names)}"


def _in_file(key: str, config: Config, path: Path) -> Iterator[str]:
    """The value that counts with a file, or why none does."""
    found = flatten(redacted(config.model_dump(mode="json")))
    reasons = _without_effect(config)
    if why := next((why for name, why in reasons.items() if f"{key}.".startswith(f"{name}.")), ""):
        yield f"in {path}: without effect {why}"
    elif key in found:
        is_given = key in _sources(path, ())
        yield f"in {path}: {dump_line(found[key])}{'' if is_given else ', the default'}"
    elif key.startswith(f"{_OPTIONS_KEY}."):
        yield f"in {path}: not given"


def _without_effect(section: Section, prefix: str = "") -> dict[str, str]:
    """Keys and sections that do nothing in a configuration, each with the reason."""
    found = {f"{prefix}{name}": why for name, why in section.keys_without_effect().items()}
    for name, inner in section:
        if isinstance(inner, Section):
            found |= _without_effect(inner, f"{prefix}{name}.")
    return found


def _advice(key: str, known: Mapping[str, KeyHelp], *, has_config: bool) -> str:
    if key.startswith(f"{_OPTIONS_KEY}.") and not has_config:
        return "; the keys of env.options are those of the environment: add --config FILE"
    if named := keys_called(key, Config):
        return f"; did you mean {' or '.join(named)}?"
    names = dict.fromkeys([*known, *(name for name, _ in sections(Config))])
    return hint(key) or nearest(key, names) or f"; sections: {', '.join(Config.model_fields)}"
