"""Configurations made to hold up or crash the command that reads them: one sentence, exit code 2, in no time."""

import os
import tracemalloc
from pathlib import Path

import pytest
from commands import one_line_error, run_here
from cpu_time import cpu_s

from agent_rl.config import apply_override, load_config
from agent_rl.errors import ConfigError
from agent_rl.planning.layout import read_layout

MARK = Path("/tmp/hostile_settings_was_here")
AT_ONCE_S = 0.4
"""Many values take a hundredth, and a tenth under tracemalloc, which counts every piece of memory."""
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
TEXTS = {
    "deep lists": "[" * 900 + "]" * 900,
    "deep mappings": "{a: " * 900 + "1" + "}" * 900,
    "very deep": "[" * 100_000,
    "very deep in lines": "[\n" * 100_000,
    "deep blocks": "- " * 5_000,
    "deep block mappings": "\n".join(" " * depth + "a:" for depth in range(600)),
    "deep by aliases": "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 3_000)),
    "many digits": "train: {steps: " + "9" * 5_000 + "}",
    "many digits in base 16": "train: {steps: 0x" + "f" * 100_000 + "}",
    "many digits in base 2": "train: {steps: 0b" + "1" * 100_000 + "}",
    "a number in base 60": "train: {steps: 1" + ":59" * 30_000 + "}",
    "a float in base 60": "train: {learning_rate: 1" + ":59" * 30_000 + ".5}",
    "an exponent": "train: {steps: 1e999999999}",
    "aliases": BOMB,
    "merges": "a0: &a0 {k: v}\n"
    + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 10)),
    "aliases within a section": BOMB + "train: {steps: *a11}",
    "an anchor within itself": "train: &a {steps: *a}",
    "an anchor within itself as a key": "&a ? *a\n: 1",
    "an unknown alias": "train: *nothing",
    "many values": "train: [" + "1," * 100_000 + "]",
    "large": "# " + "x" * 30_000_000,
    "a large value": "run: {name: " + "x" * 250_000 + "}",
    "a large key": "x" * 120_000 + ": 1",
    "a large question key": "? " + "x" * 250_000 + "\n: 1",
    "a tag": f"train: !!python/object/apply:os.system ['touch {MARK}']",
    "a tag of a name": "train: !!python/name:os.system",
    "a tag of a wrong value": "train: {steps: !!bool perhaps}",
    "a tag of nothing": "train: {steps: !!int ''}",
    "a tag of a time": "train: {steps: !!timestamp soon}",
    "bytes": "train: {steps: !!binary '*'}",
    "a set": "train: !!set {a, b}",
    "an impossible date": "train: {steps: 2020-13-45}",
    "a key twice": "train: {steps: 1, steps: 2}",
    "a key twice with escapes": 'train: {steps: 1, "st\\x65ps": 2}',
    "a list as key": "? [a]\n: 1",
    "a mapping as key": "? {a: 1}\n: 1",
    "a default value": "train: {steps: =}",
    "NUL": "train: {steps: \0}",
    "a lone surrogate": 'run: {name: "\\ud800"}',
    "a control character": "run: {name: \x07}",
    "two documents": "train: {}\n---\ntrain: {}",
    "directives": "%YAML 9.9\n---\ntrain: {}",
    "many directives": "%TAG !a! tag:x,2000:\n" * 10_000,
    "a number": "5",
    "nothing": "",
}
BYTES = {
    "not UTF-8": b"train: \xff\xfe",
    "UTF-16": "train: {steps: 1}".encode("utf-16"),
    "UTF-32": "train: {steps: 1}".encode("utf-32"),
    "zeros": bytes(2**22),
    **{name: text.encode() for name, text in TEXTS.items()},
}


def refused(path: Path) -> None:
    def load() -> None:
        with pytest.raises(ConfigError, match=r"\A[^\n]{10,800}\Z"):
            load_config(path)

    assert cpu_s(load, AT_ONCE_S) < AT_ONCE_S


@pytest.mark.parametrize("name", BYTES)
def test_a_hostile_file_is_one_sentence_at_once(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(BYTES[name])
    refused(path)
    tracemalloc.start()
    try:
        refused(path)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert not MARK.exists()


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_override_is_one_sentence_or_harmless(name: str) -> None:
    def override() -> None:
        raw: dict = {}
        try:
            apply_override(raw, f"train.steps={TEXTS[name]}")
        except ConfigError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
        assert len(repr(raw)) < 300_000

    assert cpu_s(override, AT_ONCE_S) < AT_ONCE_S


@pytest.mark.parametrize("key", ["a." * 50_000 + "a", "." * 50_000, "train" * 50_000 + ".x", "train.\ud800"])
def test_a_hostile_key_of_an_override_is_one_sentence(tmp_path: Path, key: str) -> None:
    line = one_line_error(run_here("train", "--config", "configs/hello.yaml", f"{key}=1"))
    assert len(line) < 1500


@pytest.mark.parametrize("name", ["deep lists", "many digits", "aliases", "a lone surrogate", "large"])
def test_a_command_ends_with_one_sentence(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(BYTES[name])
    assert str(path) in one_line_error(run_here("train", "--config", path))


def test_what_is_no_file_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path in ("pipe", "loop", ".", "a" * 300, "/dev/zero", "/dev/full"):
        one_line_error(run_here("train", "--config", str(tmp_path / path)))


@pytest.mark.parametrize("name", ["deep lists", "many digits", "aliases", "large", "a tag", "a list as key"])
def test_a_hostile_launchers_file_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "launch.yaml").write_bytes(BYTES[name])
    with pytest.raises(ConfigError, match=r"\A[^\n]{10,800}\Z"):
        read_layout(tmp_path / "launch.yaml")


def test_anchors_and_plain_scalars_of_people_are_read(tmp_path: Path) -> None:
    raw: dict = {}
    apply_override(raw, "env.options={a: &a {x: 1, y: [1.5, null]}, b: *a, c: {<<: *a, x: 2}, d: '0x1f', e: 0x1f}")
    options = raw["env"]["options"]
    assert options["b"] == options["a"] == {"x": 1, "y": [1.5, None]}
    assert (options["c"]["x"], options["d"], options["e"]) == (2, "0x1f", 31)
