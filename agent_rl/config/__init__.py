"""The configuration: strict typed sections, one YAML file, `section.key=value` overrides.

Unknown keys, wrong types and keys that would have no effect are errors that name the file, the key, what was
got and the nearest valid name. Nothing is read from the environment. Not here: what a name in the file stands for
(`registry.py`).
"""

from agent_rl.config.base import flatten as flatten
from agent_rl.config.learning import AlgorithmConfig as AlgorithmConfig
from agent_rl.config.learning import TrainConfig as TrainConfig
from agent_rl.config.load import apply_override as apply_override
from agent_rl.config.load import import_plugins as import_plugins
from agent_rl.config.load import load_config as load_config
from agent_rl.config.load import parse_config as parse_config
from agent_rl.config.load import read_yaml as read_yaml
from agent_rl.config.load import validate_section as validate_section
from agent_rl.config.root import Config as Config
from agent_rl.config.sections import CurriculumConfig as CurriculumConfig
from agent_rl.config.sections import CurriculumStage as CurriculumStage
from agent_rl.config.sections import DataConfig as DataConfig
from agent_rl.config.sections import LoraConfig as LoraConfig
from agent_rl.config.tools import AgentType as AgentType
from agent_rl.config.tools import MCPServerConfig as MCPServerConfig
from agent_rl.config.tools import SearchToolConfig as SearchToolConfig
from agent_rl.config.tools import ToolsConfig as ToolsConfig
