"""The configuration: every shipped file loads, every key is read, every mistake is one sentence."""

import ast
import inspect
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel

from agent_rl.config import Config, CurriculumStage, learning, load_config, sections
from agent_rl.config.engines import EngineSection
from agent_rl.config.functions import OPTION_KEYS
from agent_rl.config.load import KINDS
from agent_rl.config.yaml_text import dump_settings, parse_settings
from agent_rl.envs.nat import env as nat_agent_env
from agent_rl.envs.nat.create.settings import ServeConfig, load_serve_config
from agent_rl.envs.nat.env import NATEnvOptions
from agent_rl.envs.nat.judge import reward
from agent_rl.envs.nat.judge.reward import RewardWeights
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import ConfigError
from agent_rl.planning.machine import Machine, read_machine

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(path for path in (ROOT / "configs").glob("*.yaml") if path.name != "serve.yaml")
"""Of runs; `serve.yaml` has classes and tests of its own (`tests/envs/nat/create/`)."""
MINIMAL = """data: {train_path: a, eval_path: b}
model: {path: m}
env: {name: nat_agent_creation}
train: {steps: 3, learning_rate: 0.001}
"""


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL)
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_config_loads_and_its_environment_takes_its_options(path: Path) -> None:
    config = load_config(path)
    if config.env.name == "reasoning_gym":
        pytest.importorskip("reasoning_gym", reason="pip install -r requirements-envs.txt")
    factory = make_env_factory(config.env.name, config.env.options, seed=0)
    if factory.environments:
        tasks = {split: factory.read_tasks(config.data, split) for split in ("train", "eval")}
        assert all({task["env"] for task in each} == set(factory.environments) for each in tasks.values())
        return
    assert (ROOT / config.data.train_path).is_file()
    if config.policy.type == "minimind":
        assert (ROOT / config.model.path / "config.json").is_file()


def test_the_resolved_config_reads_back_to_itself(minimal: Path, tmp_path: Path) -> None:
    config = load_config(minimal, ["eval.temperatures=[0]"])
    again = tmp_path / "again.yaml"
    again.write_text(config.to_yaml())
    assert load_config(again) == config


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", 1e-4), ("-2E3", -2000.0), (".5e1", 5.0), ("1.e+2", 100.0), ("1.0e4", 1e4), ("12", 12), ("1e", "1e")],
)
def test_a_number_with_an_exponent_needs_neither_dot_nor_sign(text: str, value: object) -> None:
    read = parse_settings(f"a: [{text}, '{text}']", "here")["a"]
    assert (read, type(read[0])) == ([value, text], type(value))
    assert parse_settings(dump_settings(read), "again") == read


def test_overrides_are_yaml_and_the_last_one_wins(minimal: Path) -> None:
    config = load_config(minimal, ["train.steps=5", "train.steps=7", "run.name=x", "eval.temperatures=[0, 0.5]"])
    assert (config.train.steps, config.run.name, config.eval.temperatures) == (7, "x", (0.0, 0.5))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["mode=off"], {"mode": "off"}),  # YAML reads a bare off as false
        (
            ["mode=stages", "stages=[{until_step: 5, max_level: 1}]"],
            {"mode": "stages", "stages": [{"until_step": 5, "max_level": 1}]},
        ),
        (["mode=success", "window=4"], {"mode": "success", "threshold": 0.7, "window": 4, "review": 0.25}),
    ],
)
def test_a_resolved_curriculum_holds_the_keys_of_its_mode_and_reads_back(
    minimal: Path, tmp_path: Path, values: list[str], expected: dict
) -> None:
    config = load_config(minimal, [f"data.curriculum.{value}" for value in values])
    assert config.model_dump(mode="json")["data"]["curriculum"] == expected
    again = tmp_path / "again.yaml"
    again.write_text(config.to_yaml())
    assert load_config(again) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["mode=of"], "data.curriculum.mode = 'of': input should be 'off', 'stages' or 'success'"),
        (["threshold=0.7"], "threshold has no effect in mode 'off', only in 'success'"),
        (["mode=success", "stages=[]"], "stages has no effect in mode 'success', only in 'stages'"),
        (["mode=stages"], "mode 'stages' needs stages"),
        (["mode=success", "review=1.0"], "data.curriculum.review = 1.0: input should be less than 1"),
        (
            ["mode=stages", "stages=[{until_step: 5, max_level: 1}, {until_step: 5, max_level: 2}]"],
            "until_step and max_level must rise",
        ),
        (
            ["mode=stages", "stages=[{until_step: 5, max_level: 1, max_levle: 2}]"],
            "unknown key 'data.curriculum.stages.0.max_levle'; did you mean 'max_level'?",
        ),
    ],
)
def test_a_wrong_curriculum_is_one_sentence_that_names_the_key(minimal: Path, values: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        load_config(minimal, [f"data.curriculum.{value}" for value in values])
    assert "\n" not in str(caught.value)


HUGGINGFACE = ["policy.type=huggingface", "model.path=Qwen/Qwen2.5-0.5B-Instruct"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], {"path": "m", "dtype": "float32"}),
        (
            [*HUGGINGFACE, "model.attention=eager"],
            {
                "path": "Qwen/Qwen2.5-0.5B-Instruct",
                "dtype": "float32",
                "attention": "eager",
                "gradient_checkpointing": False,
                "lora": {"rank": 0},
            },
        ),
        (
            [
                *HUGGINGFACE,
                "model.gradient_checkpointing=true",
                "model.lora.rank=8",
                "model.lora.target_modules=[q, v]",
            ],
            {
                "path": "Qwen/Qwen2.5-0.5B-Instruct",
                "dtype": "float32",
                "attention": "sdpa",
                "gradient_checkpointing": True,
                "lora": {"rank": 8, "alpha": 32.0, "target_modules": ["q", "v"]},
            },
        ),
    ],
)
def test_a_resolved_model_holds_the_keys_of_its_policy_type_and_reads_back(
    minimal: Path, tmp_path: Path, values: list[str], expected: dict
) -> None:
    config = load_config(minimal, values)
    assert config.model_dump(mode="json")["model"] == expected
    again = tmp_path / "again.yaml"
    again.write_text(config.to_yaml())
    assert load_config(again) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["model.lora.rank=8"], "model.lora has no effect with policy.type 'minimind', only with 'huggingface'"),
        (["model.attention=sdpa"], "model.attention has no effect with policy.type 'minimind'"),
        (["log.project=mine"], "project has no effect without 'wandb' or 'trackio' in log.trackers"),
        (["tools.search.max_results=3"], "search has no effect without 'search' in tools.use"),
        (["model.gradient_checkpointing=true"], "model.gradient_checkpointing has no effect"),
        ([*HUGGINGFACE, "model.lora.alpha=8"], "alpha has no effect with rank 0; remove it"),
        ([*HUGGINGFACE, "model.lora.ranks=8"], "unknown key 'model.lora.ranks'; did you mean 'rank'?"),
        ([*HUGGINGFACE, "model.lora.rank=-1"], "model.lora.rank = -1: input should be greater than or equal to 0"),
        (
            [*HUGGINGFACE, "model.attention=flash_attention_2"],
            "model.attention 'flash_attention_2' computes in bfloat16 only",
        ),
        (
            ["policy.max_context=600", "policy.max_cached_tokens=599"],
            "policy.max_cached_tokens is 599, but must hold at least one window: policy.max_context is 600",
        ),
    ],
)
def test_a_wrong_model_setting_is_one_sentence_that_names_the_key(minimal: Path, values: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        load_config(minimal, values)
    assert "\n" not in str(caught.value)


VLLM = ["policy.type=vllm"]
SERVERS = [*VLLM, "vllm.servers=[http://127.0.0.1:8000, http://node2:8000/]"]
STALE = "rollout.max_staleness=1"
TIS = "algorithm.correction.kind=token_tis"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["vllm.sleep=false"], "vllm has no effect with policy.type 'minimind', only with 'vllm'"),
        ([*VLLM, "vllm.weight_transfer=files"], "weight_transfer has no effect without servers"),
        ([*SERVERS, "vllm.sleep=false"], "sleep has no effect with servers, only with an engine inside the process"),
        ([*SERVERS, "policy.max_batch_size=4"], "policy.max_batch_size has no effect with vllm.servers"),
        (
            [*SERVERS, "vllm.weight_transfer=nccl", "model.lora.rank=4"],
            "vllm.weight_transfer has no effect with adapters, which always go as files",
        ),
        ([*VLLM, "vllm.servers=[127.0.0.1:8000]"], "'127.0.0.1:8000' is no address of a server; write it as http://"),
        ([*VLLM, "vllm.servers=[http://a/v1]"], "'http://a/v1' is no address of a server"),
        ([STALE], "rollout.max_staleness is 1, but policy.type 'minimind' samples from the weights"),
        ([*VLLM, STALE], "rollout.max_staleness is 1, but algorithm.correction is none: old tokens need weights"),
        ([*VLLM, STALE, TIS, "rollout.async_workers=0"], "rollout.async_workers 0 runs no episode in the background"),
        ([*VLLM, STALE, TIS, "vllm.sleep=true"], "vllm.sleep has no effect with rollout.max_staleness"),
    ],
)
def test_a_wrong_setting_of_vllm_is_one_sentence_that_names_the_key(
    minimal: Path, values: list[str], words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        load_config(minimal, values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("values", [VLLM, SERVERS, [*SERVERS, STALE, TIS], [*VLLM, STALE, TIS]])
def test_a_run_with_vllm_reads_back(minimal: Path, tmp_path: Path, values: list[str]) -> None:
    config = load_config(minimal, values)
    again = tmp_path / "again.yaml"
    again.write_text(config.to_yaml())
    assert load_config(again) == config
    if values is SERVERS:
        assert config.vllm.servers == ("http://127.0.0.1:8000", "http://node2:8000")


@pytest.mark.parametrize("half", ["model.dtype=bfloat16", "train.autocast=bfloat16"])
def test_flash_attention_goes_with_bfloat16(minimal: Path, half: str) -> None:
    config = load_config(minimal, [*HUGGINGFACE, "model.attention=flash_attention_2", half])
    assert config.model.attention == "flash_attention_2"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.stepz=1", ["unknown key 'train.stepz'", "did you mean 'steps'"]),
        ("trian.steps=1", ["unknown key 'trian'", "did you mean 'train'"]),
        ("train.steps=many", ["train.steps = 'many'", "whole number"]),
        ("train.steps=0", ["train.steps = 0", "greater than or equal to 1"]),
        ("rollout.group_size=1", ["rollout.group_size is 1", "compares episodes"]),
        ("policy.max_new_tokens=5000", ["policy.max_new_tokens is 5000", "leave room"]),
        ("policy.type=sglang", ["policy.type = 'sglang'", "minimind"]),
        ("steps=3", ["expected section.key=value"]),
        ("train.steps.more=3", ["single value"]),
        ("train.steps=true", ["train.steps = true", "a number"]),
        ("train.learning_rate=yes", ["train.learning_rate = true", "a number"]),
        ("run.seed=off", ["run.seed = false", "a number"]),
        ("eval.temperatures=[0, true]", ["eval.temperatures.1 = true"]),
        ("rollout.ray.actors=true", ["rollout.ray.actors = true"]),
        ("data.curriculum={mode: stages, stages: [{until_step: true, max_level: 1}]}", ["stages.0.until_step = true"]),
        ("tools.use=calculator", ["tools.use = 'calculator'", "list", "[calculator]"]),
        ("eval.temperatures=0", ["eval.temperatures = 0", "[0]"]),
        ("log.alarms={metric: x}", ["log.alarms", "list"]),
        ("model.lora=8", ["model.lora = 8", "section"]),
        ("data.train_path=''", ["data.train_path = ''", "path"]),
        ("run.output_dir=''", ["run.output_dir = ''", "path"]),
        ("model.path=''", ["model.path = ''", "empty"]),
        ("checkpoint.resume=''", ["checkpoint.resume = ''", "never, auto"]),
        ("run.name=a/b", ["run.name = 'a/b'", "letters, digits, '.', '_' and '-'"]),
        ("data.columns={question:prompt}", ["data.columns", "space", "question: "]),
        ("data.curriculum={mode:success}", ["data.curriculum", "space", "mode: "]),
        ("data.curriculum=mode:success", ["data.curriculum", "space", "mode: "]),
    ],
)
def test_a_wrong_override_is_one_sentence_that_names_it(minimal: Path, override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(minimal, [override])
    text = str(caught.value)
    assert "\n" not in text
    assert [word for word in words if word not in text] == []
    assert not re.search(r"tuple|dictionary|instance|\^", text)


def test_booleans_stay_where_they_are_meant(minimal: Path) -> None:
    options = {"flag": True, "numbers": [True]}
    config = load_config(minimal, ["log.progress=no", "model.chat_template_kwargs={a: true}", f"env.options={options}"])
    assert config.log.progress is False and config.model.chat_template_kwargs == {"a": True}
    assert config.env.options == options


def test_an_option_of_an_environment_is_no_boolean_where_it_is_a_number() -> None:
    with pytest.raises(ConfigError, match=r"env\.options\.truncation_penalty = true"):
        make_env_factory("math_qa", {"truncation_penalty": True}, seed=0)
    with pytest.raises(ConfigError, match=r"env\.options\.reward\.0\.weight = true"):
        make_env_factory("math_qa", {"reward": [{"name": "math_reward_string_equal", "weight": True}]}, seed=0)


def test_a_key_without_a_space_behind_its_colon_is_told_so() -> None:
    with pytest.raises(ConfigError, match=r"env\.options\.reward.*space.*name: ") as caught:
        make_env_factory("math_qa", {"reward": [{"name:math_reward_string_equal": None, "weight:x": None}]}, seed=0)
    assert "missing" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MINIMAL + "train: {steps: 4}\n", "'train' is given twice, second time on line 5"),
        ("- 1\n- 2\n", "expected a mapping"),
        (MINIMAL + "on: 1\n", "the key 'on' on line 5 is no text; quote it"),
        (MINIMAL + "1.5: 1\n", "the key '1.5' on line 5 is no text; quote it"),
        (MINIMAL + 'run: {output_dir: "a\\0b"}\n', "a text with a zero byte on line 5; remove it"),
        ("data: [\n", "not valid YAML"),
        (
            MINIMAL.replace(", learning_rate: 0.001", ""),
            "'train.learning_rate' is missing",
        ),
        (MINIMAL.replace("env: {name: nat_agent_creation}\n", ""), "'env' is missing"),
        (MINIMAL.replace("name: nat_agent_creation", "options: {}"), "'env.name' is missing"),
    ],
)
def test_a_broken_file_is_one_sentence_that_names_it(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_points_to_the_shipped_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such config file.*configs/$"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"no such config file.*configs/machines/$"):
        read_machine(tmp_path / "none.yaml")


def test_a_folder_is_answered_with_the_files_in_it_if_there_are_any(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder") as caught:
        load_config(tmp_path)
    assert "in it" not in str(caught.value)
    (tmp_path / "config.yaml").write_text(MINIMAL)
    with pytest.raises(ConfigError, match=f"{tmp_path}/config.yaml"):
        load_config(tmp_path)


def test_a_text_that_is_no_yaml_is_placed_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Title\n\n[A](b)\nmore words: and: more\n")
    with pytest.raises(ConfigError, match=r"not valid YAML.*line \d") as caught:
        load_config(tmp_path / "README.md")
    assert "string>" not in str(caught.value)


LOADERS = {
    "configs/nat_grpo.yaml": load_config,
    "configs/serve.yaml": load_serve_config,
    "configs/machines/8xh100.yaml": read_machine,
}


@pytest.mark.parametrize(("wanted", "given"), [(a, b) for a in LOADERS for b in KINDS if a != b])
def test_a_file_of_another_kind_is_called_that(wanted: str, given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LOADERS[wanted](ROOT / given)
    text = str(caught.value)
    assert given in text and KINDS[given][0] in text and wanted in text
    assert "here it is" not in text and "missing" not in text


def test_the_keys_that_tell_kinds_of_files_apart_are_keys_of_one_kind() -> None:
    fields = [set(each.model_fields) for each in (Config, ServeConfig, Machine)]
    for number, (_, keys) in enumerate([*KINDS.values()][:3]):
        assert keys <= fields[number]
        assert not any(keys & other for other in fields[:number] + fields[number + 1 :])


def test_environment_options_are_strict_too() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'env\.options\.checker'; did you mean 'checkers'"):
        make_env_factory("nat_agent_creation", {"checker": 2}, seed=0)
    with pytest.raises(ConfigError, match=r"unknown key 'env\.options\.reward\.tool'"):
        make_env_factory("nat_agent_creation", {"reward": {"tool": 2}}, seed=0)
    with pytest.raises(ConfigError, match="did you mean 'nat_agent_creation'"):
        make_env_factory("nat_agent_creatoin", {}, seed=0)


def keys_of(model: type[BaseModel], prefix: str = "") -> list[str]:
    out = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        nested = isinstance(inner, type) and issubclass(inner, BaseModel)
        out += keys_of(inner, f"{prefix}{name}.") if nested else [f"{prefix}{name}"]
    return out


def test_every_key_is_read_somewhere() -> None:
    sources = [path for path in (ROOT / "agent_rl").rglob("*.py") if path.parent.name != "config"]
    code = "\n".join(path.read_text() for path in sources)
    for name, field in Config.model_fields.items():
        if issubclass(field.annotation, EngineSection):  # the others read what its `capabilities` return
            code += inspect.getsource(field.annotation.capabilities).replace("self.", f"{name}.")
    keys = [*keys_of(Config), *(f"stage.{key}" for key in keys_of(CurriculumStage))]
    keys += [
        *(f"options.{key}" for key in keys_of(NATEnvOptions)),
        *(f"weights.{key}" for key in keys_of(RewardWeights)),
    ]
    unread = []
    read_by_config = {"plugins", *(f"algorithm.{key}" for key in (*OPTION_KEYS, "options"))}
    for key in set(keys) - read_by_config:
        *_, section, name = key.split(".")
        # Of its own section, or of a variable that a function calls its section.
        if not re.search(rf"\b({section}|config|_config|weights)\.{name}\b", code):
            unread.append(key)
    assert unread == []


@pytest.mark.parametrize("module", [sections, learning, nat_agent_env, reward], ids=lambda module: module.__name__)
def test_every_key_has_a_line_of_help(module: ModuleType) -> None:
    bare, num_keys = [], 0
    for each in ast.parse(Path(str(module.__file__)).read_text()).body:
        if not isinstance(each, ast.ClassDef) or not issubclass(getattr(module, each.name), BaseModel):
            continue
        for field, after in pairwise([*each.body, ast.Pass()]):
            # A section within a section is explained by its class.
            if isinstance(field, ast.AnnAssign) and not ast.unparse(field.annotation).endswith("Config"):
                num_keys += 1
                if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
                    bare.append(f"{each.name}.{ast.unparse(field.target)}")
    assert bare == []
    assert num_keys >= 6


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.steps=abc", "override of train.steps: train.steps = 'abc': expected a whole number"),
        ("train.steps=true", "override of train.steps: train.steps = true"),
        ("trian.steps=3", "override of trian.steps: unknown key 'trian'"),
        ("train.betas=[0.9, x]", "override of train.betas: train.betas.1 = 'x': expected a number"),
        ("model.path=", "override of model.path: model.path = None: expected a text"),
    ],
)
def test_a_wrong_value_of_an_override_names_the_override(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(ROOT / "configs/math_grpo.yaml", ["train.steps=7", override])
    assert str(caught.value).startswith(said)
