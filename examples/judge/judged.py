"""A reward that another model gives, through any OpenAI-compatible address. The function is async: replies are judged
at the same time, while other episodes still run.

    export JUDGE_BASE_URL=https://api.openai.com/v1 JUDGE_MODEL=gpt-4.1-mini JUDGE_API_KEY=...
    python judged.py                                # the shipped model, which learns nothing from it
    python judged.py Qwen/Qwen2.5-0.5B-Instruct     # a name on the Hub, or a folder

A judge can be talked into a good mark: put a reward that cannot be in front of it where there is one.
"""

import os
import re
import sys

import httpx

from agent_rl import GRPOTrainer

MARK = "Question: {}\nReply: {}\n\nHow helpful and brief is the reply, from 0 to 10? Write the number alone."


async def judged(prompt: str, completion: str, **columns) -> float | None:
    """The judge's mark as a share of 10; None, which drops the episode, where it gives none."""
    headers = {"Authorization": f"Bearer {os.environ['JUDGE_API_KEY']}"}
    question = {"role": "user", "content": MARK.format(prompt, completion)}
    body = {"model": os.environ["JUDGE_MODEL"], "messages": [question], "temperature": 0}
    async with httpx.AsyncClient(timeout=60, headers=headers) as client:
        reply = await client.post(f"{os.environ['JUDGE_BASE_URL']}/chat/completions", json=body)
    mark = re.search(r"\d+", reply.raise_for_status().json()["choices"][0]["message"]["content"])
    return min(10, int(mark[0])) / 10 if mark else None


if __name__ == "__main__":
    words = ("rain", "sleep", "bread", "the tide", "rust", "an echo", "a rainbow", "yeast")
    rows = [{"prompt": f"Explain {word} in one sentence."} for word in words]
    steps = {"train.steps": 2, "rollout.groups_per_step": 4, "policy.max_new_tokens": 64}
    model = sys.argv[1] if sys.argv[1:] else "model/math_minimind"
    GRPOTrainer(model=model, reward_funcs=judged, train_dataset=rows, args=steps).train()
