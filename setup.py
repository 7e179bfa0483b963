"""Adds the shipped files to a wheel, as `agent_rl/shipped/`; everything else is in pyproject.toml.

They stay at the top of the repository, where an editable install reads them.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = (
    "configs/**/*.yaml",
    "configs/**/*.json",
    "dataset/**/*.jsonl*",
    "examples/*.*",
    "examples/*/*.*",
    "model/*_minimind*/*",
    "requirements*.txt",
    "constraints.txt",
)
LEFT_OUT = {"dataset/nat_tasks/written.jsonl.gz"}
"""5 MB that one stage of training needs; a clone has it."""


def shipped_files() -> list[Path]:
    found = {path for pattern in SHIPPED for path in Path().glob(pattern)}
    return sorted(path for path in found if path.as_posix() not in LEFT_OUT)


class BuildWithFiles(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for source in shipped_files():
            target = Path(self.build_lib, "agent_rl", "shipped", source)
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(source), str(target), preserve_mode=False)

    def get_source_files(self) -> list[str]:
        """What a source distribution needs to build the same wheel."""
        return [*super().get_source_files(), *map(str, shipped_files())]


setup(cmdclass={"build_py": BuildWithFiles})
