"""Names of the toolkit's configuration files (release 1.9), for checks that must not import it.

Only names: what a component does with its fields is not here.
"""

from agent_rl.envs.nat.judge.outline import Kind


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SECTIONS: dict[str, Kind] = {"functions": "function", "function_groups": "group"}
TOP_KEYS = _names("""
    base general functions function_groups middleware llms embedders memory object_stores optimizer retrievers
    ttc_strategies workflow authentication eval trainers trainer_adapters trajectory_builders finetuning
""")
CLIENTS = _names("mcp_client per_user_mcp_client")
BUILT_IN: dict[Kind, frozenset[str]] = {
    "function": _names("""
        react_agent tool_calling_agent rewoo_agent reasoning_agent router_agent responses_api_agent auto_memory_agent
        sequential_executor parallel_executor chat_completion code_execution code_generation nat_retriever
        current_datetime current_timezone EmptyFunctionConfig github_files_tool milvus_document_search
        add_memory get_memory delete_memory execute_score_select_function multi_llm_judge_function
        plan_select_execute_function ttc_tool_orchestration ttc_tool_wrapper
    """),
    "group": CLIENTS | {"github"},
}
BASE_FIELDS: dict[Kind, frozenset[str]] = {
    "function": _names("_type name middleware"),
    "group": _names("_type include exclude middleware"),
}
COMPONENTS = ("functions", "function_groups")
REFERENCES: dict[str, tuple[str, ...]] = {
    "FunctionRef": ("functions",),
    "FunctionGroupRef": ("function_groups",),
    "LLMRef": ("llms",),
    "EmbedderRef": ("embedders",),
    "RetrieverRef": ("retrievers",),
    "MemoryRef": ("memory",),
    "ObjectStoreRef": ("object_stores",),
}
"""Type of a config field -> the sections whose names it may hold."""
BUILT_IN_REFERENCES = {
    "llm_name": ("llms",),
    "tool_names": COMPONENTS,
    "tool_list": COMPONENTS,
    "branches": COMPONENTS,
    "augmented_fn": ("functions",),
}
"""The same for the fields of the toolkit's own types."""
