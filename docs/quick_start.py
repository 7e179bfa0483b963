"""A model, a reward function, rows and a tool: run `python docs/quick_start.py` in any folder.

It trains the shipped model of a million parameters; any Hugging Face causal LM takes its place.
"""

from agent_rl import GRPOTrainer


def is_right(completions, answer, **columns):
    return [
        float(text.rpartition("Answer:")[2].strip() == right) for text, right in zip(completions, answer, strict=True)
    ]


rows = [
    {
        "prompt": f"Ida buys {n} stamps at {price} dollars apiece. What does Ida pay in all, in dollars?",
        "answer": f"{n * price}",
    }
    for n in range(11, 31)
    for price in range(3, 20)
]
trainer = GRPOTrainer(
    model="model/math_minimind",
    reward_funcs=is_right,
    train_dataset=rows[::2],
    eval_dataset=rows[1::2],
    tools=["calculator"],
    args={
        "train.steps": 20,
        "train.learning_rate": 3e-4,
        "policy.max_context": 640,
        "policy.max_new_tokens": 64,
        "eval.temperatures": [0.0],
        "env.options.system_prompt": "Solve the problem; use the tools to calculate. "
        "Then write Answer: and the answer alone.",
    },
)
trainer.train()
