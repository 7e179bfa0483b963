"""The task families by name. To add one, add a file here and an oracle of that name in `agent_rl.nat.oracle`."""

from agent_rl.nat.families.api_client import ApiClient
from agent_rl.nat.families.base import Family
from agent_rl.nat.families.calculator import Calculator
from agent_rl.nat.families.code_validator import CodeValidator
from agent_rl.nat.families.date_tool import DateTool
from agent_rl.nat.families.function_group import FunctionGroup
from agent_rl.nat.families.group_base import GroupFamily
from agent_rl.nat.families.note_search import NoteSearch
from agent_rl.nat.families.table_processor import TableProcessor
from agent_rl.nat.families.text_pipeline import TextPipeline
from agent_rl.nat.families.unit_converter import UnitConverter

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
