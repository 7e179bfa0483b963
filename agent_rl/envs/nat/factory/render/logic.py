"""logic.py of a reference project: what the tools compute, without the toolkit."""

import re

from agent_rl.envs.nat.factory.families import FAMILIES, GROUPS
from agent_rl.envs.nat.spec import NATSpec

_TOP_LEVEL = re.compile(r"^(?:def |class )?([A-Za-z_]\w*)(?= ?[=(:])", re.MULTILINE)


def render_logic(spec: NATSpec, changed: dict[str, str] | None = None) -> str:
    """Text of logic.py; `changed` replaces the definitions of some tools, by instance (or the group's, by its type)."""
    changed = changed or {}
    parts = [changed.get(tool.instance) or FAMILIES[tool.family].definitions(tool) for tool in spec.tools]
    if spec.group:
        parts.append(changed.get(spec.group.type_name) or GROUPS[spec.group.family].definitions(spec.group))
    keep = {name for tool in spec.tools for name in FAMILIES[tool.family].exports(tool)}
    imports: list[str] = []
    texts = []
    for number, part in enumerate(parts):
        lines = part.strip("\n").split("\n")
        imports += [line for line in lines if line.startswith(("import ", "from ")) and line not in imports]
        text = "\n".join(line for line in lines if not line.startswith(("import ", "from "))).strip("\n")
        texts.append(_apart(text, number, keep) if number else text)
    head = "".join(f"{line}\n" for line in sorted(imports, key=_import_order)) + "\n" if imports else ""
    # Two blank lines before a definition, one before a table, as in hand-written code.
    gap = "\n" if texts[0].startswith(("def ", "class ", "async def ")) else ""
    return f'"""Logic of {spec.package}."""\n\n{head}{gap}' + "\n\n\n".join(texts) + "\n"


def _import_order(line: str) -> tuple[bool, str]:
    return (line.startswith("from "), line)


def _apart(text: str, number: int, keep: set[str]) -> str:
    """The text with its own module-level names changed, so that two tools of one family can share a file."""
    names = {name for name in _TOP_LEVEL.findall(text) if name not in keep}
    for name in names:
        text = re.sub(rf"\b{name}\b", f"{name}_{number + 1}", text)
    return text
