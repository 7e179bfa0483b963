"""`agent-rl translate`: a configuration of AgentFly, Miniagent, verl, SkyRL or TRL as one of ours.

    agent-rl translate verl_grpo.yaml > mine.yaml
    agent-rl translate run.sh --from agentfly --base configs/math_grpo.yaml > mine.yaml

The YAML goes to the standard output, what could not be translated to the standard error. Nothing is run.
"""

import sys
from pathlib import Path
from typing import Annotated

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
    import yaml

    from agent_rl.config.load import parse_config, read_yaml
    from agent_rl.config.translate import read_foreign, translate
    from agent_rl.errors import ConfigError
    from agent_rl.resources import find

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read ({error}); give a text file") from None
    made = translate(read_foreign(text, str(file)), library)
    tree = {} if base is None else read_yaml(find(base))
    for key, value in made.settings.items():
        *parents, name = key.split(".")
        node = tree
        for parent in parents:
            if not isinstance(node.get(parent), dict):
                node[parent] = {}
            node = node[parent]
        node[name] = value
    print(yaml.safe_dump(tree, sort_keys=False), end="")
    print(f"{made.library}: {len(made.settings)} keys translated, {len(made.left_out)} not", file=sys.stderr)
    for key, reason in made.left_out.items():
        print(f"  {key}: {reason}", file=sys.stderr)
    missing = [key for key in _REQUIRED if not _has(tree, key)]
    if missing:
        print(f"still to be set: {', '.join(missing)}", file=sys.stderr)
        return
    try:
        parse_config(tree, source="it does not load yet")
    except ConfigError as error:
        print(error, file=sys.stderr)


def _has(tree: object, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True
