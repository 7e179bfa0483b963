"""Parse a dataset row into a spec; an error is one sentence that names the field."""

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from agent_rl.envs.nat.factory.families import FAMILIES, GROUPS
from agent_rl.envs.nat.factory.families.plan_bounds import check_group, check_rule_size, check_tool, check_workflow
from agent_rl.envs.nat.factory.generate import LEVELS
from agent_rl.envs.nat.spec import NATSpec, Router
from agent_rl.errors import DataError, nearest_or_all

_ADVICE = "make the file again with agent_rl/scripts/prepare_dataset.py"


def parse_spec(row: dict[str, Any], where: str) -> NATSpec:
    """Validate a dataset row; `where` (file and row) opens the error sentence. Raises DataError."""
    if not {"family", "tools", "workflow"} & row.keys():
        columns = ", ".join(row)
        raise DataError(f"{where}: no NAT task, but a row of {columns:.200}; give tasks of `agent-rl prepare-dataset`")
    try:
        spec = NATSpec.model_validate(row)
    except ValidationError as error:
        raise _wrong(error, where, "") from None
    _known(where, "family", spec.family, LEVELS)
    for number, tool in enumerate(spec.tools):
        place = f"tools.{number}"
        _known(where, f"{place}.family", tool.family, FAMILIES)
        _check(lambda tool=tool: check_rule_size(tool.rules), where, f"{place}.rules")
        _check_rules(FAMILIES[tool.family].Rules, tool.rules, where, f"{place}.rules")
        _check(lambda tool=tool: FAMILIES[tool.family].check_cost(tool.rules), where, f"{place}.rules")
        _check(lambda tool=tool: check_tool(tool), where, place)
    if group := spec.group:
        _known(where, "group.family", group.family, GROUPS)
        _check(lambda: check_rule_size(group.rules), where, "group.rules")
        _check_rules(GROUPS[group.family].Rules, group.rules, where, "group.rules")
        _check(lambda: check_group(group), where, "group")
    _check(lambda: check_workflow(spec), where, "workflow.example")
    if not spec.tools and not spec.group:
        raise DataError(f"{where}: field 'tools': there is neither a tool nor a group; {_ADVICE}")
    _check_references(spec, where)
    return spec


def _check(check: Callable[[], None], where: str, field: str) -> None:
    try:
        check()
    except ValueError as error:
        raise DataError(f"{where}: field {field!r}: {error}; {_ADVICE}") from None


def _check_references(spec: NATSpec, where: str) -> None:
    names = {tool.instance for tool in spec.tools}
    if spec.group:
        names |= {f"{instance}__{each.name}" for instance in spec.group.instances for each in spec.group.visible}
    flow = spec.workflow
    used = list(flow.commands.values()) if isinstance(flow, Router) else []
    used += [step.tool for step in flow.steps] if flow.kind == "pipeline" else []
    for name in used:
        if name not in names:
            raise DataError(f"{where}: field 'workflow': {name!r} is none of the tools {sorted(names)}; {_ADVICE}")


def _known(where: str, field: str, name: str, known: Any) -> None:
    if name not in known:
        hint = nearest_or_all(name, known)
        raise DataError(f"{where}: field {field!r}: there is no task family {name!r}{hint}")


def _check_rules(model: Any, rules: dict[str, Any], where: str, field: str) -> None:
    try:
        model.model_validate(rules)
    except ValidationError as error:
        raise _wrong(error, where, f"{field}.") from None


def _wrong(error: ValidationError, where: str, prefix: str) -> DataError:
    first = error.errors()[0]
    field = prefix + ".".join(str(part) for part in first["loc"])
    message = first["msg"][0].lower() + first["msg"][1:]
    return DataError(f"{where}: field {field!r}: {message}; {_ADVICE}")
