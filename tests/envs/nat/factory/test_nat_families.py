"""What holds for every family of tools, on sampled tools; golden values are in their own files."""

import nat_family_checks as checks
import pytest

from agent_rl.envs.nat.factory.families import FAMILIES

PURE = sorted(set(FAMILIES) - {"api_client", "note_search"})
"""The other two sample cases from worlds and corpora; their own files check what PURE families must hold."""


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", PURE)
def test_the_reference_agrees_with_the_oracle_on_sampled_tools(name: str, level: int) -> None:
    checks.reference_agrees_with_the_oracle(FAMILIES[name], level)


@pytest.mark.parametrize("level", [1, 2, 3, 5])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_reference_tests_kill_the_mutants(name: str, level: int) -> None:
    checks.mutants_fail_the_assertions(FAMILIES[name], level)


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("name", PURE)
def test_subtle_mistakes_show_on_sampled_cases(name: str, level: int) -> None:
    checks.subtle_bodies_are_caught(FAMILIES[name], level)


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("name", PURE)
def test_a_seed_gives_the_same_rules_and_a_request_that_names_every_error(name: str, level: int) -> None:
    checks.rules_and_requests(FAMILIES[name], level)


@pytest.mark.parametrize("name", PURE)
def test_about_a_tenth_of_the_rules_is_held_out(name: str) -> None:
    checks.held_out_share(FAMILIES[name])
