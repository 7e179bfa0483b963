"""The task families by name. Adding one means adding a file here and an interpreter to `agent_rl.nat.oracle`."""

from agent_rl.nat.families.base import Family
from agent_rl.nat.families.calculator import Calculator
from agent_rl.nat.families.code_validator import CodeValidator
from agent_rl.nat.families.text_pipeline import TextPipeline
from agent_rl.nat.families.unit_converter import UnitConverter

FAMILIES: dict[str, Family] = {
    family.name: family for family in (UnitConverter(), TextPipeline(), Calculator(), CodeValidator())
}
