"""What a package holds: the judged files with a `pyproject.toml` that installs, a page about it, where it came from.

A model writes dependencies without versions and no build system, and a wheel of its project lacks the configurations;
here all three are put right. Everything that a model, a planner or a person wrote is shown as text within fences. Files
that nobody judged are left out. Not here: the disk (`package.py`).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_rl.envs.nat.create.result import Creation
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.judge.validator.folder import find_project
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.errors import UserError

PROVENANCE, PAGE, CASES = "PROVENANCE.json", "README.md", "cases.jsonl"
PYPROJECT = "pyproject.toml"
_OURS = (PROVENANCE, PAGE, CASES)
_RUN_BY_TOOLS = re.compile(r"setup\.(py|cfg)|conftest\.py|(site|user)customize\.py|.*\.pth|MANIFEST\.in|tox\.ini|\..*")
"""Names that an installer, pytest or Python acts on by itself, and hidden ones."""
_DISTRIBUTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,60}[A-Za-z0-9])?")
_VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){0,3}")
_ENTRY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*){0,8}")
_PINNED = ("nvidia-nat-core", "nvidia-nat-mcp", "mcp")
_PYTHONS = ">=3.11,<3.14"
_BUILD = 'requires = ["setuptools>=69"]\nbuild-backend = "setuptools.build_meta"'


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedAgent:
    """A project as it is shipped."""

    name: str
    """Of the distribution."""
    version: str
    package: str
    """Of the Python package."""
    source: str
    """`src/`, or nothing in the flat layout."""
    entry_points: dict[str, str]
    """Name -> module, in `nat.components`."""
    dependencies: tuple[str, ...]
    """Pinned."""
    files: dict[str, str]
    """Path -> text, all that is shipped."""

    @property
    def package_files(self) -> dict[str, str]:
        """What a wheel holds of it, by the path in a wheel."""
        top = f"{self.source}{self.package}/"
        return {path.removeprefix(self.source): text for path, text in self.files.items() if path.startswith(top)}

    @property
    def judged_files(self) -> dict[str, str]:
        """What checks read: all but the pages that were added."""
        return {path: text for path, text in self.files.items() if path not in _OURS}


def packaged(creation: Creation, toolkit: NatToolkit) -> PackagedAgent:
    """The package of a creation with files; a rejected project stays as it was written.

    Raises UserError for a project that has no package or no usable name.
    """
    shipped, left_out = _shipped(creation)
    if creation.state == "rejected":
        return _as_it_is(creation, shipped, left_out)
    (read,) = toolkit.parse([("toml", shipped.get(PYPROJECT, ""))])
    project = find_project(Path("the project"), shipped, read.value, read.refused)
    section = read.value["project"]
    name, version = str(section.get("name")), str(section.get("version"))
    if not _DISTRIBUTION.fullmatch(name):
        raise UserError(f"the project's name is {name[:80]!r}, which no installer takes; it cannot be packaged")
    entries = {
        entry: module
        for entry, module in section["entry-points"].get("nat.components", {}).items()
        if _ENTRY.fullmatch(entry) and isinstance(module, str) and _MODULE.fullmatch(module)
    }
    if not entries:
        raise UserError(f"{PYPROJECT} of the project names no module in nat.components; it cannot be packaged")
    agent = PackagedAgent(
        name=name,
        version=version if _VERSION.fullmatch(version) else "0.1.0",
        package=project.package,
        source=project.source,
        entry_points=entries,
        dependencies=_pins(creation.spec, toolkit),
        files={},
    )
    files = {**shipped, PYPROJECT: _pyproject(agent)}
    if cases := _cases(creation.spec):
        files[CASES] = cases
    files[PAGE] = _page(creation, agent)
    files[PROVENANCE] = _provenance(creation, files, left_out)
    return replace(agent, files=files)


def _as_it_is(creation: Creation, shipped: dict[str, str], left_out: list[str]) -> PackagedAgent:
    package = creation.spec.package if creation.spec else "project"
    agent = PackagedAgent(
        name=package, version="0", package=package, source="src/", entry_points={}, dependencies=(), files={}
    )
    files = {**shipped, PAGE: _page(creation, agent)}
    files[PROVENANCE] = _provenance(creation, files, left_out)
    return replace(agent, files=files)


def digests(files: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of every file but the one that holds them."""
    return {
        path: hashlib.sha256(text.encode()).hexdigest() for path, text in sorted(files.items()) if path != PROVENANCE
    }


def _shipped(creation: Creation) -> tuple[dict[str, str], list[str]]:
    """(the files that were judged, the paths of others)."""
    files = creation.files
    if creation.spec is not None:
        wanted = set(creation.spec.files)
    else:
        wanted = {path for path in files if not any(_RUN_BY_TOOLS.fullmatch(part) for part in path.split("/"))}
    wanted -= set(_OURS)
    return {path: files[path] for path in sorted(wanted) if path in files}, sorted(set(files) - wanted)


def _pins(spec: NATSpec | None, toolkit: NatToolkit) -> tuple[str, ...]:
    """The versions that the project was judged with."""
    installed = toolkit.versions()
    versions = {name: installed[name] for name in _PINNED}
    if spec is not None and spec.workflow.kind == "react":
        versions["nvidia-nat-langchain"] = versions["nvidia-nat-core"]  # released together
    return tuple(f"{name}=={version}" for name, version in versions.items())


def _pyproject(agent: PackagedAgent) -> str:
    """Written anew from checked names, so nothing that a model wrote is quoted."""
    entries = "\n".join(f'{name} = "{module}"' for name, module in agent.entry_points.items())
    pins = ", ".join(f'"{pin}"' for pin in agent.dependencies)
    where = f'where = ["{agent.source.rstrip("/") or "."}"]\ninclude = ["{agent.package}*"]'
    return f"""[build-system]
{_BUILD}

[project]
name = "{agent.name}"
version = "{agent.version}"
requires-python = "{_PYTHONS}"
dependencies = [{pins}]

[project.entry-points.'nat.components']
{entries}

[tool.setuptools.packages.find]
{where}

[tool.setuptools.package-data]
"*" = ["*.yml", "*.yaml", "configs/*.yml", "configs/*.yaml"]
"""


def _cases(spec: NATSpec | None) -> str:
    """The plan's test cases, for `agent-rl nat validate --cases`; none where they need more than one call."""
    if spec is None or spec.group is not None:
        return ""
    lines = [{"target": each.tool, "input": each.inputs, "expected": each.expected} for each in spec.plan.test_cases]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


_VERDICTS = {
    "accepted": "Accepted: every hidden case of the plan was answered rightly, through the toolkit itself.",
    "built": "Built, not accepted: there was no plan, so nobody knows whether its answers are right. The toolkit "
    "builds it, its server answers and its own tests pass, which wrong projects manage too.",
    "rejected": "REJECTED: this project did not pass its checks. It is here to be looked at.",
}


def _page(creation: Creation, agent: PackagedAgent) -> str:
    """README.md."""
    config = next((path for path in sorted(agent_configs(creation.files))), "config.yml")
    parts = [
        f"# {agent.package}",
        _VERDICTS[creation.state],
        "A model wrote this code. Run it as you would run a stranger's: `agent-rl run` keeps it in a sandbox.",
        f"What was asked for:\n\n{fenced(creation.request)}",
    ]
    if creation.spec is not None and creation.spec.request != creation.request:
        parts.append(f"What that was taken to mean:\n\n{fenced(creation.spec.request)}")
    problems = creation.report.problems if creation.report else ()
    if creation.state == "rejected":
        parts.append("What was found:\n\n" + fenced("\n".join(problems[:12]) or creation.reason))
    parts.append(
        "## Run it\n\n```bash\nagent-rl run .            # HTTP: POST /v1/workflow with the inputs as JSON\n"
        "agent-rl run . --mcp      # its functions as MCP tools\n```\n\nWithout agent-rl, in an interpreter of its own "
        f"and without a sandbox:\n\n```bash\npip install .\nnat mcp serve --config_file {config}\n```"
    )
    if creation.spec is not None and _cases(creation.spec):
        parts.append(f"## Cases\n\n`{CASES}` holds the plan's own: `agent-rl nat validate . --cases {CASES}`.")
    parts.append(f"`{PROVENANCE}` says which model wrote it, from which seed, and what was checked.")
    return "\n\n".join(parts) + "\n"


def package_of(files: Mapping[str, str]) -> str | None:
    """The Python package of a project without a plan, by its configuration; None where it has none of a usual name."""
    tops = [path.removeprefix("src/").split("/")[0] for path in agent_configs(files)]
    return next((top for top in tops if _ENTRY.fullmatch(top)), None)


def folder_name(creation: Creation) -> str:
    """What a folder with the project is called: its package."""
    return creation.spec.package if creation.spec else package_of(creation.files) or "rejected_agent"


def agent_configs(files: Mapping[str, str]) -> list[str]:
    """Paths of the main configurations, the one that is run first."""
    return sorted((path for path in files if path.endswith(("/config.yml", "/config.yaml"))), key=len)


def fenced(text: str) -> str:
    """A text as a Markdown block that shows it and does nothing else."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _provenance(creation: Creation, files: Mapping[str, str], left_out: list[str]) -> str:
    record: dict[str, Any] = creation.to_dict()
    del record["files"]
    record |= {"file_sha256": digests(files), "left_out": left_out}
    return json.dumps(record, indent=2) + "\n"
