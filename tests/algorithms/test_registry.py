import pytest

from agent_rl.algorithms.registry import Registry
from agent_rl.errors import ConfigError


def registry_of_sums():
    sums = Registry("sum", num_inputs=2)

    @sums.register("plain")
    def plain(a, b):
        return a + b

    @sums.register("scaled")
    def scaled(a, b, *, factor=1):
        return factor * (a + b)

    return sums


def test_a_function_is_found_by_its_name_and_stays_callable():
    sums = Registry("sum", num_inputs=2)

    @sums.register("plain")
    def plain(a, b):
        return a + b

    assert sums.get("plain") is plain
    assert sums.names() == ("plain",)


def test_only_the_options_that_a_function_uses_reach_it():
    sums = registry_of_sums()
    assert sums.options_of("plain") == set()
    assert sums.options_of("scaled") == {"factor"}
    assert sums.call("plain", 1, 2, factor=10) == 3
    assert sums.call("scaled", 1, 2, factor=10) == 30


def test_a_mistyped_option_or_name_is_answered_with_the_nearest():
    sums = registry_of_sums()
    with pytest.raises(ConfigError, match="no sum has an option 'facotr'; did you mean 'factor'"):
        sums.call("plain", 1, 2, facotr=10)
    with pytest.raises(ConfigError, match="unknown sum 'scalde'; did you mean 'scaled'"):
        sums.get("scalde")
    with pytest.raises(ConfigError, match="unknown sum 'zzz'; known: plain, scaled"):
        sums.options_of("zzz")


def test_a_name_is_given_once():
    sums = registry_of_sums()
    with pytest.raises(ConfigError, match="there is a sum 'plain' already"):
        sums.register("plain")(min)
    assert sums.get("plain") is not min


def test_options_without_names_are_refused():
    for nameless in (lambda a, b, **options: a, lambda *inputs: inputs):
        with pytest.raises(ConfigError, match=r"'open' takes \*args or \*\*kwargs"):
            registry_of_sums().register("open")(nameless)
