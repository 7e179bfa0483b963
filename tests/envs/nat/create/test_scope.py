"""What a model can be asked for: what it was trained for, as far as the configuration lets it write that."""

from pathlib import Path
from typing import Any

import pytest
from created_agents import MODEL, reference, serve_config
from fakes import ScriptedPolicy
from nat_projects import spec_of

from agent_rl.envs.nat.create.creator import AgentCreator
from agent_rl.envs.nat.create.result import Creation
from agent_rl.envs.nat.create.scope import Scope
from agent_rl.envs.nat.create.settings import WritesConfig
from agent_rl.envs.nat.factory.generate import STARTER_FAMILIES
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.errors import CheckpointError, ConfigError
from agent_rl.policies.model_files.trained_for import FILE, TrainedFor

NAT = "nat_agent_creation"
TASKS: dict[str, Any] = {"families": ("unit_converter",), "levels": (1,), "kinds": ("create",), "wordings": ("own",)}
SMALL = TrainedFor(environment=NAT, max_context=90_000, tasks=TASKS)
SPEC = spec_of("unit_converter", 1)


def scope(trained: TrainedFor | None, **writes: Any) -> Scope:
    return Scope.of(WritesConfig(**writes), trained, "my model")


def knowing(**tasks: tuple[str | int, ...]) -> TrainedFor:
    return TrainedFor(environment=NAT, max_context=90_000, tasks=TASKS | tasks)


def test_the_model_says_what_it_knows_and_the_configuration_what_it_may() -> None:
    assert scope(None).families == STARTER_FAMILIES  # nothing says what it knows
    assert scope(SMALL).families == ("unit_converter",)
    assert scope(knowing(levels=(1, 2, 3)), levels=(3, 4)).levels == (3,)
    assert scope(SMALL, levels=(2,)).levels == ()
    assert scope(None, families=("date_tool",), levels=(5,)).families == ("date_tool",)
    assert scope(SMALL).beyond(SPEC) is None
    for beyond, word in ((spec_of("calculator", 1), "family 'calculator'"), (spec_of("unit_converter", 2), "level 2")):
        assert word in (scope(SMALL).beyond(beyond) or "")


@pytest.mark.parametrize(
    ("trained", "has_plan", "num_repairs", "word"),
    [
        (SMALL, False, 0, "without a plan"),
        (knowing(wordings=("any", "own")), False, 0, "without a plan"),
        (knowing(wordings=("any", "free")), False, 0, None),
        (None, False, 0, None),
        (SMALL, True, 0, None),
        (SMALL, True, 2, "not trained to repair"),
        (knowing(kinds=("create", "repair")), True, 2, None),
        (None, True, 2, None),
    ],
)
def test_free_words_and_repairs_are_for_models_that_learned_them(
    trained: TrainedFor | None, has_plan: bool, num_repairs: int, word: str | None
) -> None:
    why = scope(trained).beyond_work(has_plan=has_plan, num_repairs=num_repairs)
    assert (why is None) == (word is None)
    assert word is None or word in str(why)


def created(toolkit: NatToolkit, trained: TrainedFor, request: str, **options: Any) -> tuple[Creation, int]:
    """What became of a request, and how often the model was asked."""
    policy = ScriptedPolicy([reference(SPEC)] * 2, max_context=90_000)
    config = serve_config(writes={"free_words": True})
    making = AgentCreator(config, policy=policy, toolkit=toolkit, planner=None, model=MODEL, trained_for=trained)
    return making.create(request, **options), len(policy.prompts)


def test_what_a_model_was_not_trained_for_is_refused_and_it_is_not_asked(nat_toolkit: NatToolkit) -> None:
    for options, word in (
        ({}, "free words"),
        ({"spec": SPEC, "repairs": 1}, "to repair"),
        ({"spec": spec_of("calculator", 1)}, "'calculator'"),
    ):
        creation, num_asked = created(nat_toolkit, SMALL, "convert days", **options)
        assert (creation.state, num_asked) == ("refused", 0)
        assert word in creation.reason and "\n" not in creation.reason
    short = TrainedFor(environment=NAT, max_context=200, tasks=TASKS)
    creation, _ = created(nat_toolkit, short, "convert days", spec=SPEC)
    assert "window of 200" in creation.reason
    creation, _ = created(nat_toolkit, SMALL, "convert days", spec=SPEC)
    assert creation.state == "accepted"
    creation, _ = created(nat_toolkit, knowing(wordings=("free",)), "convert days")
    assert creation.state == "built"


def test_a_model_for_something_else_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trained for math_qa .*nat_agent_creation") as caught:
        AgentCreator.open("configs/serve.yaml", checkpoint="model/math_minimind")
    assert "\n" not in str(caught.value)
    (tmp_path / FILE).write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match=FILE):
        AgentCreator.open("configs/serve.yaml", checkpoint=str(tmp_path))
