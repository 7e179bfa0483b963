"""An agent of one's own, trained as it is: `python own_agent.py`, in any folder.

What is written behind it, such as train.steps=5, overrides the configuration.
"""

import sys

import httpx

from agent_rl import GRPOTrainer, Reward, load_config
from agent_rl.tools.calculator import CalculationError, calculate

CALCULATOR = {
    "name": "calculator",
    "description": "Calculate an arithmetic expression.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "For example 3*(4+5)"}},
        "required": ["expression"],
    },
}


def use_calculator(call: dict) -> dict:
    import json

    try:
        text = calculate(json.loads(call["function"]["arguments"])["expression"])
    except (CalculationError, KeyError, TypeError) as error:
        text = f"error: {error}"
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


async def agent(task: dict, base_url: str, api_key: str) -> Reward:
    """Solve one task through any OpenAI-compatible client, and say what it was worth."""
    messages = [{"role": "user", "content": task["question"]}]
    async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=300) as client:
        for _ in range(4):
            body = {"model": "policy", "messages": messages, "tools": [{"type": "function", "function": CALCULATOR}]}
            reply = await client.post("/chat/completions", json=body, headers={"Authorization": f"Bearer {api_key}"})
            choice = reply.raise_for_status().json()["choices"][0]
            message = choice["message"]
            messages += [message, *map(use_calculator, message.get("tool_calls", []))]
            if choice["finish_reason"] != "tool_calls":
                break
    is_right = (message["content"] or "").strip().endswith(task["answer"])
    return Reward(value=float(is_right), parts={"turns": len(messages) / 2}, success=is_right)


if __name__ == "__main__":
    own = ["run.name=own-agent", "env.name=external", f"env.options={{agent: '{__file__}:agent'}}", "tools.use=[]"]
    config = load_config("configs/math_grpo.yaml", [*own, "train.steps=1", *sys.argv[1:]])
    with GRPOTrainer.from_config(config) as trainer:
        trainer.train()
