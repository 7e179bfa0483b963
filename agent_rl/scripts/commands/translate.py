"""`agent-rl translate`: a configuration of AgentFly, Miniagent, verl, SkyRL or TRL as one of ours.

    agent-rl translate verl_grpo.yaml > mine.yaml
    agent-rl translate run.sh --from agentfly --base configs/math_grpo.yaml > mine.yaml

The YAML goes to the standard output, what could not be translated to the standard error. Nothing is run.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

_REQUIRED = ("env.name", "data.train_path", "model.path", "train.steps", "train.learning_rate")


def main(
    file: Annotated[Path, typer.Argument(help="YAML, JSON, or a text with the command that trains; - is the input.")],
    library: Annotated[
        str | None, typer.Option("--from", help="agentfly, miniagent, verl, skyrl, trl; default: by its keys.")
    ] = None,
    base: Annotated[Path | None, typer.Option(help="Configuration whose other keys are added.")] = None,
) -> None:
    """Translate a configuration of another library, and list what of it has no counterpart."""
    from agent_rl.config.load import parse_config, read_yaml
    from agent_rl.config.translate import read_foreign, translate
    from agent_rl.config.yaml_text import dump_settings, settings_text
    from agent_rl.errors import ConfigError
    from agent_rl.resources import find

    text = settings_text(file)
    made = translate(read_foreign(text, str(file)), library)
    tree = {} if base is None else read_yaml(find(base))
    if made.settings.get("train.schedule") == "constant" and isinstance(tree.get("train"), dict):
        tree["train"].pop("final_learning_rate", None)  # of the base's schedule
    for key, value in made.settings.items():
        *parents, name = key.split(".")
        node = tree
        for parent in parents:
            if not isinstance(node.get(parent), dict):
                node[parent] = {}
            node = node[parent]
        node[name] = value
    _leave_out_own_tools(tree, made.settings)
    print(dump_settings(tree), end="")
    print(f"{made.library}: {len(made.settings)} keys translated, {len(made.left_out)} not", file=sys.stderr)
    for key, reason in made.left_out.items():
        print(f"  {key}: {reason}", file=sys.stderr)
    for key, note in made.notes.items():
        print(f"note: {key}: {note}", file=sys.stderr)
    missing = [key for key in _REQUIRED if not _has(tree, key)]
    if missing:
        print(f"still to be set: {', '.join(missing)}", file=sys.stderr)
        return
    try:
        parse_config(tree, source="it does not load yet")
    except ConfigError as error:
        print(error, file=sys.stderr)


def _leave_out_own_tools(tree: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Take from `tools.use` those that the environment of the base brings itself."""
    if "tools.use" not in settings or not _has(tree, "env.name"):
        return
    from agent_rl.envs.registry import make_env_factory
    from agent_rl.errors import UserError

    try:
        factory = make_env_factory(tree["env"]["name"], tree["env"].get("options") or {})
    except UserError:  # said where the result is loaded
        return
    tree["tools"]["use"] = [name for name in settings["tools.use"] if name not in (factory.own_tools or ())]
    factory.close()


def _has(tree: object, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True
