"""Write the tables of docs/configuration.md, planning.md, create.md and service.md: every key, from its class.

    python scripts/write_configuration_docs.py

Only what stands between the two marks is replaced. A test compares, so a key that is added, renamed or explained anew
needs one run of this. Not here: the rest of the page, which is written by hand.
"""

from pathlib import Path

from pydantic import BaseModel

from agent_rl.config import Config
from agent_rl.config.help import help_of, one_line, own_keys, section_of, sections
from agent_rl.envs.nat.create.settings import ServeConfig, ServiceConfig
from agent_rl.envs.registry import OPTIONS
from agent_rl.planning.machine import Machine
from agent_rl.registry import import_object

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
PLANNING_PAGE = PAGE.with_name("planning.md")
CREATE_PAGE = PAGE.with_name("create.md")
SERVICE_PAGE = PAGE.with_name("service.md")
BEGIN = "<!-- Tables by scripts/write_configuration_docs.py; edit the classes instead. -->\n"
END = "<!-- End of the tables. -->\n"


def main() -> None:
    bodies = {PAGE: tables(), PLANNING_PAGE: machine_table()}
    bodies |= {CREATE_PAGE: create_tables(), SERVICE_PAGE: service_table()}
    for path, body in bodies.items():
        path.write_text(updated(path.read_text(encoding="utf-8"), body), encoding="utf-8")


def updated(page: str, body: str) -> str:
    """The page with fresh tables; ValueError where a mark is missing."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + "\n" + body + "\n" + END + after


def machine_table() -> str:
    """The keys of a machine file."""
    return _table("Keys of a machine file", Machine).partition("\n\n")[2].partition("\n\n")[2]


def create_tables() -> str:
    """The sections of configs/serve.yaml that runs do not have, but for the service's."""
    own = {name for name in ServeConfig.model_fields if name not in Config.model_fields} - {"service"}
    parts = [("top level", ServeConfig), *sections(ServeConfig)]
    return "\n".join(_table(name, section) for name, section in parts if name == "top level" or name in own)


def service_table() -> str:
    """The keys of the service."""
    return _table("service", ServiceConfig)


def tables() -> str:
    """A heading and a table for every section, in the order of the configuration."""
    parts = [_table(name, section) for name, section in [("top level", Config), *sections(Config)]]
    for name, path in OPTIONS.items():
        prefix = f"env.options of {name}"
        parts += [_table(title, section) for title, section in sections(import_object(path), prefix, with_root=True)]
    return "\n".join(parts)


def _table(name: str, section: type[BaseModel]) -> str:
    keys, about = own_keys(section), help_of(section)
    rows = []
    for key, field in section.model_fields.items():
        if key in keys:
            found = keys[key]
            default = "must be given" if found.default is None else f"`{found.default}`"
            rows.append(f"| `{key}` | {default} | {found.takes} | {_cell(found.about)} |")
        elif name.endswith(".NAME") and section_of(field.annotation) is not None:  # it has no table of its own here
            rows.append(f"| `{key}` | as in section `{key}` | keys of section `{key}`, list | {_cell(about[key])} |")
    text = f"{_cell(one_line(section.__doc__))}\n\n" if section.__doc__ else ""
    return f"### {name}\n\n{text}| key | default | takes | what |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
