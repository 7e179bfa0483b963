"""`agent-rl init`: a project to start from, with a task, a score, a configuration and tests.

    agent-rl init my_project
    agent-rl init my_agent --example agent

Copies a folder of `examples/`, from the package or the checkout. Does not: train, or write over files.
"""

import shutil
from pathlib import Path
from typing import Annotated

import typer


def main(
    folder: Annotated[Path, typer.Argument(help="Folder to make; an empty one will do.")],
    example: Annotated[str, typer.Option(help="Which folder of examples/ to start from.")] = "starter",
) -> None:
    """Make a project to start from, in a new folder."""
    from agent_rl import resources
    from agent_rl.errors import UserError, nearest_or_all
    from agent_rl.telemetry.files import make_folder

    examples = {path.name: path for path in sorted((resources.folder() / "examples").iterdir()) if path.is_dir()}
    if example not in examples:
        raise UserError(f"--example {example}: there is no such example{nearest_or_all(example, examples)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already and not an empty folder; name another one")
    make_folder(folder, "the project's folder")
    names = sorted(path.name for path in examples[example].iterdir() if path.is_file())
    for name in names:
        shutil.copyfile(examples[example] / name, folder / name)
    print(f"{folder}: {', '.join(names)}")
    print(f"Next: cd {folder}, and read README.md" if "README.md" in names else f"Next: cd {folder}")
