"""`configs/serve.yaml`: the shipped file, every key read and documented, every mistake one sentence."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agent_rl.config import Config
from agent_rl.envs.nat.create.scope import Scope
from agent_rl.envs.nat.create.settings import ServeConfig, as_serve_config, load_serve_config
from agent_rl.envs.nat.factory.generate import STARTER_FAMILIES, STARTER_LEVELS
from agent_rl.errors import ConfigError
from agent_rl.policies.model_files.trained_for import read_trained_for

ROOT = Path(__file__).resolve().parents[4]
SHIPPED = ROOT / "configs/serve.yaml"
OWN = {name: field.annotation for name, field in ServeConfig.model_fields.items() if name not in Config.model_fields}
OWN_SECTIONS = {
    name: section for name, section in OWN.items() if isinstance(section, type) and issubclass(section, BaseModel)
}


def test_the_shipped_file_is_about_the_shipped_model_and_what_it_learned() -> None:
    config = load_serve_config(SHIPPED)
    assert (ROOT / config.model.path / "config.json").is_file()
    run = config.run_config
    assert (run.policy.type, run.policy.max_context, run.model.path) == ("minimind", 1024, config.model.path)
    scope = Scope.of(config.writes, read_trained_for(ROOT / config.model.path), "it")
    assert (scope.families, scope.levels) == (tuple(sorted(STARTER_FAMILIES)), STARTER_LEVELS)
    assert (scope.takes_free_words, scope.repairs, scope.max_context) == (False, False, 1024)
    assert config.planner.settings is None
    defaults = as_serve_config({"model": {"path": "m"}})
    assert (config.writes, config.creation, config.checker) == (defaults.writes, defaults.creation, defaults.checker)


def test_every_key_is_read_somewhere() -> None:
    folder = ROOT / "agent_rl/envs/nat/create"
    code = "\n".join(path.read_text() for room in ("create", "service") for path in folder.parent.glob(f"{room}/*.py"))
    planner = (folder / "settings.py").read_text().split("def settings(self)")[1].split("class WritesConfig")[0]
    names = {
        "writes": "writes|self.config.writes|self._config.writes",
        "creation": "limits|self._limits",
        "checker": "checker",
        "service": "service|config|self._config",
    }
    unread = [
        f"{section}.{key}"
        for section, model in OWN_SECTIONS.items()
        for key in model.model_fields
        if not (
            re.search(rf"self\.{key}\b", planner)
            if section == "planner"
            else re.search(rf"(?:{names[section]})\.{key}\b", code)
        )
    ]
    assert set(unread) <= {"writes.wording", "writes.names"}  # read by `of_plans`
    assert "writes.of_plans" in code
    assert "self.device" in code


def test_the_page_has_the_tables_of_the_classes() -> None:
    path = ROOT / "scripts/write_configuration_docs.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    pages = {name: (ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("create", "service")}
    for name, body in (("create", generator.create_tables()), ("service", generator.service_table())):
        assert generator.updated(pages[name], body) == pages[name], "run python scripts/write_configuration_docs.py"
    for section, model in OWN_SECTIONS.items():
        page = pages["service" if section == "service" else "create"]
        table = page.split(f"### {section}\n")[1].split("\n### ")[0]
        assert [f"| `{key}` |" in table for key in model.model_fields] == [True] * len(model.model_fields)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("creation.candidate=3", ("creation.candidate", "candidates")),
        ("creation.candidates=0", ("creation.candidates", "1")),
        ("model.lora.rank=4", ("model.lora", "without training")),
        ("policy.temperature=0.5", ("policy.temperature", "creation.temperature")),
        ("policy.max_new_tokens=2000", ("max_new_tokens", "max_context")),
        ("vllm.sleep=false", ("vllm", "minimind")),
        ("writes.families=[poems]", ("poems", "unit_converter")),
        ("writes.levels=[9]", ("9", "1 to 5")),
        ("planner.model=m", ("planner", "none")),
        ("planner.source=oracle", ("planner.source", "openai")),
        ("train.steps=4", ("train",)),
        ("candidates=2", ("did you mean creation.candidates",)),
        ("learning_rate=2", ("for example creation.candidates",)),
    ],
)
def test_a_mistake_is_one_sentence(override: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_serve_config(SHIPPED, [override])
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in words), text


@pytest.mark.parametrize("given", [5, None, ["configs/serve.yaml"]])
def test_what_is_no_configuration_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="a file or a mapping"):
        as_serve_config(given)


def test_a_planner_of_the_file_has_its_settings() -> None:
    words = ["planner.source=openai", "planner.model=m", "planner.base_url=http://x/v1", "planner.key_env=K"]
    settings = load_serve_config(SHIPPED, [*words, "planner.max_tools=2"]).planner.settings
    assert settings is not None
    assert (settings.model, settings.base_url, settings.key_name, settings.max_tools) == ("m", "http://x/v1", "K", 2)
