"""Values by name and by import path."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_rl.errors import ConfigError
from agent_rl.registry import Registry, import_object


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


def test_a_function_that_cannot_take_the_inputs_is_refused_by_name_and_by_path(package: Path) -> None:
    (package / "own.py").write_text("def one(a): return a\ndef apart(a, *, b): return a\nnumber = 1\n")
    for name, said in [("one", "own.py:1) takes (a)"), ("apart", "own.py:2) takes (a, *, b)"), ("number", "is 1,")]:
        with pytest.raises(ConfigError) as caught:
            registry_of_sums().get(f"{package}/own.py:{name}")
        assert said in str(caught.value)
    with pytest.raises(ConfigError, match=r"test_registry.py:\d+\) takes \(a\)"):
        registry_of_sums().register("short")(lambda a: a)


def test_a_file_or_module_without_a_name_in_it_is_told_how_to_name_one() -> None:
    for name in ("own.py", "own/own.py", "my_package.own"):
        with pytest.raises(ConfigError, match=f"write {name}:"):
            registry_of_sums().get(name)
    with pytest.raises(ConfigError) as caught:
        registry_of_sums().get("plain.")
    assert "did you mean 'plain'" in str(caught.value)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of a user, importable for one test."""
    folder = tmp_path / "registry_test_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.startswith("registry_test_package")]:
        del sys.modules[name]


def test_an_import_path_names_a_module_of_the_path_or_a_file(package: Path) -> None:
    (package / "own.py").write_text("def plus(a, b, *, by=0): return a + b + by\nclass Own:\n    half = 0.5\n")
    sums = registry_of_sums()
    assert sums.get("registry_test_package.own:plus")(1, 2) == 3
    assert sums.options_of("registry_test_package.own:plus") == {"by"}
    assert sums.get(f"{package}/own.py:plus") is sums.get(f"{package}/own.py:plus")
    assert import_object("registry_test_package.own:Own.half") == 0.5


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("registry_test_package.owm:plus", "no module 'registry_test_package.owm'"),
        ("no_such_package.own:plus", "no module 'no_such_package'"),
        ("registry_test_package.own:pluss", "no attribute 'pluss'; did you mean 'plus'"),
        ("registry_test_package/own:plus", "not the name of a module"),
        ("registry_test_package/own.py:plus", "no such file"),
        ("registry_test_package.own:", "expected module:attribute"),
    ],
)
def test_a_wrong_path_is_one_sentence(package: Path, path: str, words: str) -> None:
    (package / "own.py").write_text("def plus(a, b): return a + b\n")
    with pytest.raises(ConfigError, match=words) as caught:
        registry_of_sums().get(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "error", "line"),
    [
        ("\nimport no_such_module_of_mine", ModuleNotFoundError, 2),
        ("def f():\n    1 / 0\nf()", ZeroDivisionError, 2),
        ("\n\ndef x(:\n", SyntaxError, 3),
        ("import sys\nsys.exit(3)", SystemExit, 2),
    ],
)
def test_an_error_in_the_users_own_module_is_one_sentence_with_its_line(
    package: Path, text: str, error: type[BaseException], line: int
) -> None:
    (package / "broken.py").write_text(text)
    for path in ("registry_test_package.broken:plus", f"{package}/broken.py:plus"):
        with pytest.raises(ConfigError) as caught:
            registry_of_sums().get(path)
        assert f"{package}/broken.py:{line}" in str(caught.value) and error.__name__ in str(caught.value)
        assert isinstance(caught.value.__cause__, error)


def test_a_builtin_value_is_imported_when_it_is_requested_and_keeps_its_name(package: Path) -> None:
    (package / "own.py").write_text("def plain(a, b): return a + b\n")
    sums = Registry("sum", {"plain": "registry_test_package.own:plain"}, num_inputs=2)
    assert sums.names() == ("plain",)
    assert "registry_test_package.own" not in sys.modules
    with pytest.raises(ConfigError, match="'plain' already"):
        sums.register("plain")(min)
    assert sums.get("plain")(1, 2) == 3
    with pytest.raises(ConfigError, match="'plain' already"):
        sums.register("plain")(min)


def test_a_builtin_module_may_register_its_name_itself_and_a_path_finds_what_a_decorator_registered(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = Registry("sum", {"twice": "registry_test_package.own:plain"}, num_inputs=2)
    monkeypatch.setattr(importlib.import_module("registry_test_package"), "sums", sums, raising=False)
    (package / "own.py").write_text(
        "from registry_test_package import sums\ndef once(a, b): return a + b\n"
        "def decorate(function):\n    sums.add('twice', lambda a, b: 2 * (a + b), source=function)\n"
        "    return function\n"
        "@decorate\ndef plain(a, b): return a + b\n"
    )
    assert sums.get("twice")(1, 2) == 6
    assert sums.get("registry_test_package.own:plain")(1, 2) == 6
    assert sums.get("registry_test_package.own:once")(1, 2) == 3


def test_names_are_checked_without_an_import() -> None:
    sums = Registry("sum", {"plain": "no_such_package:plain"}, key="section.sum")
    for name in ("plain", "another:plain"):
        sums.check(name)
    with pytest.raises(ConfigError, match=r"'plian' in section\.sum; did you mean 'plain'"):
        sums.check("plian")
