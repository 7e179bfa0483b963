"""Components of the tests: a workflow without a framework, one that fails on some rows, and evaluators."""

import asyncio
from collections.abc import AsyncIterator

from nat.builder.builder import Builder, EvalBuilder
from nat.builder.evaluator import EvaluatorInfo
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_evaluator, register_function
from nat.data_models.evaluator import EvalInputItem, EvaluatorBaseConfig
from nat.data_models.function import FunctionBaseConfig

from nat_agent_rl import policy_client


class PlainConfig(FunctionBaseConfig, name="test_plain"):
    server: str


class PickyConfig(EvaluatorBaseConfig, name="test_picky"):
    """The example's evaluator, but it breaks on some rows."""


@register_function(config_type=PlainConfig)
async def plain(config: PlainConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    async with policy_client(config.server) as client:

        async def ask(question: str) -> str:
            if "never asks" in question:
                return "Answer: 12"
            if "raises first" in question:
                raise KeyError("before the policy")
            body = {"model": "policy", "logprobs": True, "messages": [{"role": "user", "content": question}]}
            for _ in range(2 if "stop early" in question else 1):
                response = await client.post("/v1/chat/completions", json=body)
                response.raise_for_status()
            if "raises later" in question:
                raise ValueError("behind the\npolicy")
            if "hangs" in question:
                await asyncio.sleep(60)
            return response.json()["choices"][0]["message"]["content"]

        yield FunctionInfo.from_fn(ask, description="Ask the policy.")


@register_evaluator(config_type=PickyConfig)
async def picky(config: PickyConfig, builder: EvalBuilder) -> AsyncIterator[EvaluatorInfo]:
    from math_example import last_number
    from nat.plugins.eval.data_models.evaluator_io import EvalOutputItem
    from nat.plugins.eval.evaluator.base_evaluator import BaseEvaluator

    class Picky(BaseEvaluator):
        async def evaluate_item(self, item: EvalInputItem) -> EvalOutputItem:
            if "cannot be judged" in item.input_obj:
                raise RuntimeError("no verdict")
            score = float(last_number(item.output_obj) == last_number(item.expected_output_obj))
            return EvalOutputItem(id=item.id, score=score, reasoning="")

    yield EvaluatorInfo(config=config, evaluate_fn=Picky().evaluate, description="Compares numbers.")
