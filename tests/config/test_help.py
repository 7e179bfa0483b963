"""`agent-rl config`: the whole configuration reads back, says where values come from, and every key is explained."""

import sys
from pathlib import Path

import pytest
import yaml
from commands import ROOT, one_line_error, run_here

from agent_rl.config import Config, load_config
from agent_rl.config.base import flatten_keys
from agent_rl.config.help import keys_of
from agent_rl.config.yaml_text import parse_settings
from agent_rl.envs.registry import OPTIONS
from agent_rl.registry import import_object
from agent_rl.renamed import called_elsewhere

MATH = ["--config", "configs/math_grpo.yaml"]


def shown(*words: str | Path) -> str:
    done = run_here("config", "show", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def explained(*words: str | Path) -> str:
    done = run_here("config", "explain", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_what_is_shown_reads_back_as_the_same_run(path: Path, tmp_path: Path) -> None:
    if path.name == "serve.yaml":
        assert "configures serving" in one_line_error(run_here("config", "show", "--config", path))
        return
    (tmp_path / "shown.yaml").write_text(shown("--config", path), encoding="utf-8")
    assert load_config(tmp_path / "shown.yaml") == load_config(path)


def test_every_value_says_where_it_comes_from() -> None:
    lines = shown(*MATH, "train.steps=5", "model.lora={rank: 8}", "policy.type=huggingface").splitlines()
    assert {
        "  steps: 5  # override",
        "    rank: 8  # override",
        "    alpha: 32.0  # default",
        "  group_size: 8  # file",
        "  weight_decay: 0.0  # default",
        "  name: math_qa  # file",
    } <= set(lines)
    values = [line for line in lines if not line.endswith(":")]
    assert [line for line in values if not line.endswith(("# file", "# override", "# default"))] == []


def test_a_text_of_several_lines_stays_on_one_and_credentials_are_not_shown() -> None:
    text = shown(
        *MATH,
        'env.options.system_prompt="one # two\\nthree: 4\\n"',
        "log.notify=https://me:geheim@example.org/x?key=geheim",
        "run.name='1e4'",
    )
    assert yaml.safe_load(text)["env"]["options"]["system_prompt"] == "one # two\nthree: 4\n"
    assert "geheim" not in text
    assert parse_settings(text, "shown")["run"]["name"] == "1e4"


def test_a_wrong_file_is_the_sentence_that_a_run_would_give() -> None:
    assert "did you mean 'steps'" in one_line_error(run_here("config", "show", *MATH, "train.stepz=1"))


def test_every_key_has_help_and_a_default_unless_it_must_be_given() -> None:
    keys = keys_of(Config)
    assert set(flatten_keys(Config)) <= set(keys)
    for path in OPTIONS.values():
        keys |= keys_of(import_object(path), "env.options")
    assert [key for key, about in keys.items() if not about.about or not about.takes] == []
    assert {key for key in flatten_keys(Config) if keys[key].default is None} == {
        *("model.path", "env.name", "train.steps", "train.learning_rate")
    }


def test_a_key_is_explained_with_its_value_and_its_other_names() -> None:
    text = explained("train.steps", *MATH)
    assert all(part in text for part in ("whole number from 1", "must be given", "in configs/math_grpo.yaml: 100"))
    assert "in TRL: max_steps" in text
    assert "in configs/math_grpo.yaml: 1, the default" in explained("train.epochs", *MATH)
    assert "without effect with policy.type 'minimind'" in explained("model.lora.rank", *MATH)
    assert "without effect with algorithm.advantage 'grpo'" in explained("critic.learning_rate", *MATH)


def test_names_elsewhere_are_those_of_each_library() -> None:
    assert called_elsewhere("rollout.max_turns")["AgentFly"] == ["agent.max_turns"]
    assert called_elsewhere("train.weight_decay") == {"TRL": ["weight_decay"]}
    assert called_elsewhere("log.progress") == {}


def test_a_section_lists_its_keys_in_a_line_each() -> None:
    lines = explained("data.curriculum").splitlines()
    names = [line.split()[0] for line in lines[1:]]
    assert names[0] == "data.curriculum.mode" and "data.curriculum.stages[].until_step" in names
    assert all(name.startswith("data.curriculum.") for name in names)
    everything = explained().splitlines()
    assert len(everything) == len(keys_of(Config))
    assert "log.alarms[].metric" in explained("log.alarms")


def test_options_of_an_environment_are_explained_with_a_file_that_names_it() -> None:
    text = explained("env.options.prompt", "--config", "configs/nat_grpo_8xh100.yaml")
    assert "default: compact" in text and "in configs/nat_grpo_8xh100.yaml: guide" in text
    assert "not given" in explained("env.options.repair_turns", "--config", "configs/nat_grpo_8xh100.yaml")
    assert "--config" in one_line_error(run_here("config", "explain", "env.options.prompt"))


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("train.stepz", "'train.steps'"),
        ("steps", "train.steps"),
        ("trian", "'train'"),
        ("trainer.total_epochs", "here it is train.steps"),
        ("xyzzy", "sections: plugins, run"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(key: str, part: str) -> None:
    assert part in one_line_error(run_here("config", "explain", key))


def test_keys_are_completed_in_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # the name of the program is that of `sys.argv`
    monkeypatch.setenv("_COMMAND_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "command config explain train.st")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert run_here().stdout.split() == ["train.steps"]


def test_without_words_the_commands_are_listed() -> None:
    done = run_here()
    assert "config" in done.stdout and done.stderr == ""
