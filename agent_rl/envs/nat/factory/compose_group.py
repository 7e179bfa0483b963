"""Sample an agent whose tools are the functions of a group that share one state."""

import random

from agent_rl.envs.nat.factory.compose import router_over
from agent_rl.envs.nat.factory.families.group.base import GroupFamily, Sequence
from agent_rl.envs.nat.factory.oracle import workflow as oracle
from agent_rl.envs.nat.spec import Group, GroupCall, Router

INSTANCES = ["desk", "vault", "shelf", "board", "ledger", "counter", "drawer", "box"]


def compose_group(family: GroupFamily, level: int, package: str, rng: random.Random) -> tuple[Group, Router]:
    """A group with its example, and a router over the functions that can be reached."""
    draft = family.draft(rng, level)
    group = Group(
        family=family.name,
        type_name=f"{package}_group",
        instances=tuple(rng.sample(INSTANCES, draft.num_instances)),
        class_name=draft.class_name,
        functions=draft.functions,
        hidden=draft.hidden,
        rules=draft.rules,
        config_field=draft.config_field,
        errors=draft.errors,
        example=(),
    )
    group = group.model_copy(update={"example": with_answers(group, family.example(group, rng))})
    commands = {
        function.name if len(group.instances) == 1 else f"{instance}-{function.name}": f"{instance}__{function.name}"
        for instance in group.instances
        for function in group.visible
    }
    return group, router_over(commands, (), package, rng)


def with_answers(group: Group, calls: Sequence) -> tuple[GroupCall, ...]:
    """The calls with the answers of one fresh instance."""
    answers = oracle.run_calls(group, group.defaults, calls)
    return tuple(
        GroupCall(function=name, inputs=inputs, output=answer)
        for (name, inputs), answer in zip(calls, answers, strict=True)
    )
