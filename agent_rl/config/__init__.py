"""The configuration: strict typed sections, one YAML file, `section.key=value` overrides.

Unknown keys, wrong types and keys that would have no effect are errors that name the file, the key, what was
got and the nearest valid name. Nothing is read from the environment, and nothing of ours is imported here
besides the error vocabulary.
"""

from agent_rl.config.learning import AlgorithmConfig, CriticConfig, KLConfig, TrainConfig
from agent_rl.config.load import apply_override, load_config, parse_config, read_yaml, validate_section
from agent_rl.config.root import Config
from agent_rl.config.sections import CurriculumConfig, CurriculumStage, LoraConfig
from agent_rl.config.tools import AgentConfig, AgentType, MCPServerConfig, SearchToolConfig, ToolsConfig
from agent_rl.config.vllm import VLLMConfig

__all__ = [
    "AgentConfig",
    "AgentType",
    "AlgorithmConfig",
    "Config",
    "CriticConfig",
    "CurriculumConfig",
    "CurriculumStage",
    "KLConfig",
    "LoraConfig",
    "MCPServerConfig",
    "SearchToolConfig",
    "ToolsConfig",
    "TrainConfig",
    "VLLMConfig",
    "apply_override",
    "load_config",
    "parse_config",
    "read_yaml",
    "validate_section",
]
