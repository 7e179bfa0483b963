"""What the toolkit finds: it imports this module with every `nat` command, so heavy imports are in the functions."""

from collections.abc import AsyncIterator
from typing import Any

from nat.builder.builder import Builder
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.llm import LLMProviderInfo
from nat.cli.register_workflow import (
    register_llm_client,
    register_llm_provider,
    register_trainer,
    register_trainer_adapter,
    register_trajectory_builder,
)

from nat_agent_rl.configs import AgentRLAdapterConfig, AgentRLBuilderConfig, AgentRLPolicyConfig, AgentRLTrainerConfig


@register_llm_provider(config_type=AgentRLPolicyConfig)
async def policy_provider(config: AgentRLPolicyConfig, builder: Builder) -> AsyncIterator[LLMProviderInfo]:
    yield LLMProviderInfo(config=config, description="The policy in training, behind `agent-rl serve-trainer`.")


@register_llm_client(config_type=AgentRLPolicyConfig, wrapper_type=LLMFrameworkEnum.LANGCHAIN)
async def policy_for_langchain(config: AgentRLPolicyConfig, builder: Builder) -> AsyncIterator[Any]:
    from nat_agent_rl.llm import chat_model

    async with chat_model(
        config.server,
        model=config.model_name,
        api_key_env=config.api_key_env,
        max_tokens=config.max_tokens,
        request_timeout_s=config.request_timeout_s,
    ) as model:
        yield model


@register_trainer(config_type=AgentRLTrainerConfig)
async def trainer(config: AgentRLTrainerConfig, builder: Builder) -> AsyncIterator[Any]:
    from nat_agent_rl.trainer import AgentRLTrainer

    yield AgentRLTrainer(config)


@register_trainer_adapter(config_type=AgentRLAdapterConfig)
async def trainer_adapter(config: AgentRLAdapterConfig, builder: Builder) -> AsyncIterator[Any]:
    from nat_agent_rl.trainer_adapter import AgentRLTrainerAdapter

    yield AgentRLTrainerAdapter(config)


@register_trajectory_builder(config_type=AgentRLBuilderConfig)
async def trajectory_builder(config: AgentRLBuilderConfig, builder: Builder) -> AsyncIterator[Any]:
    from nat_agent_rl.trajectory_builder import AgentRLTrajectoryBuilder

    yield AgentRLTrajectoryBuilder(config)
