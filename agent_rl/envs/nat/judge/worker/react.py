"""The scripted LLM, loaded beside `jobs.py` into an interpreter with nvidia-nat-langchain.

It replies with the texts in `mock_tools.script`, then with the last message it got, so a ReAct agent returns what its
tool answered. It never reaches a network.
"""

import importlib.metadata
from collections.abc import AsyncGenerator
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from nat.plugin_api import (
    Builder,
    LLMBaseConfig,
    LLMFrameworkEnum,
    LLMProviderInfo,
    register_llm_client,
    register_llm_provider,
)

from agent_rl.envs.nat.judge.worker.jobs import warm_up
from agent_rl.envs.nat.judge.worker.mock_tools import script


class ScriptedLLMConfig(LLMBaseConfig, name="checker_scripted_llm"):
    """Takes the place of the project's LLM."""


@register_llm_provider(config_type=ScriptedLLMConfig)
async def _provider(config: ScriptedLLMConfig, _builder: Builder) -> AsyncGenerator[LLMProviderInfo, None]:
    yield LLMProviderInfo(config=config, description="scripted")


class ScriptedLLM(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        text = script.pop(0) if script else f"Thought: I know.\nFinal Answer: {messages[-1].content}"
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=text))])

    def bind_tools(self, tools: Any, **_: Any) -> "ScriptedLLM":
        return self


@register_llm_client(config_type=ScriptedLLMConfig, wrapper_type=LLMFrameworkEnum.LANGCHAIN)
async def _client(config: ScriptedLLMConfig, _builder: Builder) -> AsyncGenerator[ScriptedLLM, None]:
    yield ScriptedLLM()


def prepare(workdir: str) -> None:
    """Let one agent call its tool, so that late imports are there before the forks."""
    workflow = "workflow:\n  _type: react_agent\n  llm_name: llm\n  tool_names: [tool]\n"
    workflow += "llms:\n  llm:\n    _type: openai\n    model_name: none\n"
    ask = ["", {"value": 1.0, "unit": "m"}, "tool"]
    warm_up(workdir, workflow, {"scripted": ["llm"], "questions": [ask]})


JOBS: dict[str, Any] = {}
ABOUT = {"nvidia-nat-langchain": importlib.metadata.version("nvidia-nat-langchain")}
