"""A policy of one's own that is not trained, on held-out tasks: `python own_policy.py`, in any folder.

What is written behind it, such as data.max_eval_tasks=20, overrides the configuration.
"""

import re
import sys
from collections.abc import Callable

from agent_rl import (
    BasePolicy,
    Completion,
    FinishReason,
    Message,
    evaluate_policy,
    load_config,
    load_policy_tokenizer,
    make_chat_format,
)


class FunctionPolicy(BasePolicy):
    """Says what a function makes of the prompt's text."""

    def __init__(self, reply: Callable[[str], str], tokenizer, *, max_context: int) -> None:
        self.reply, self.tokenizer, self.max_context = reply, tokenizer, max_context
        self.chat_format = make_chat_format(tokenizer)

    def generate(self, prompt_ids, sampling, cancel=None) -> Completion:
        if cancel is not None and cancel.is_set():
            return Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.CANCELLED, weight_version=0)
        text = self.reply(self.tokenizer.decode(prompt_ids))
        ids = tuple(self.chat_format.render_completion(Message.assistant(text)))
        sampled = ids[: sampling.max_new_tokens]
        reason = FinishReason.STOP if sampled == ids else FinishReason.LENGTH
        return Completion(token_ids=sampled, logprobs=(0.0,) * len(sampled), finish_reason=reason, weight_version=0)

    def close(self) -> None:
        return None


def multiply(prompt: str) -> str:
    """Multiplies all numbers of the question, whatever it is."""
    if result := re.search(r"<tool_response>\n(.*)\n</tool_response>", prompt):
        return f"Answer: {result[1]}"
    product = "*".join(re.findall(r"\d+", prompt.split("<|im_start|>user")[1]))
    return f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{product}"}}}}\n</tool_call>'


config = load_config("configs/math_grpo.yaml", sys.argv[1:])
policy = FunctionPolicy(multiply, load_policy_tokenizer(config), max_context=config.policy.max_context)
result, episodes = evaluate_policy(config, policy)
low, high = 100 * result.success_low, 100 * result.success_high
print(f"{result.num_successes}/{result.num_scored} solved, {low:.1f} to {high:.1f} %")
