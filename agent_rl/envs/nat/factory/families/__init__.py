"""The task families by name. To add one, add a file here and an oracle of that name in `factory/oracle/`."""

from agent_rl.envs.nat.factory.families.api.client import ApiClient
from agent_rl.envs.nat.factory.families.base import Family
from agent_rl.envs.nat.factory.families.calculator import Calculator
from agent_rl.envs.nat.factory.families.code_validator import CodeValidator
from agent_rl.envs.nat.factory.families.date.tool import DateTool
from agent_rl.envs.nat.factory.families.group.base import GroupFamily
from agent_rl.envs.nat.factory.families.group.function_group import FunctionGroup
from agent_rl.envs.nat.factory.families.notes.search import NoteSearch
from agent_rl.envs.nat.factory.families.tables.processor import TableProcessor
from agent_rl.envs.nat.factory.families.text_pipeline import TextPipeline
from agent_rl.envs.nat.factory.families.unit_converter import UnitConverter

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        UnitConverter(),
        TextPipeline(),
        Calculator(),
        DateTool(),
        TableProcessor(),
        CodeValidator(),
        NoteSearch(),
        ApiClient(),
    )
}
"""Families of single tools."""

GROUPS: dict[str, GroupFamily] = {family.name: family for family in (FunctionGroup(),)}
"""Families of function groups."""
