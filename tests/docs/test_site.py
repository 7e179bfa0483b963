"""The documentation site has every page in its navigation, and is built so that a broken link ends the build."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


class _Loader(yaml.SafeLoader):
    """Of a file that names Python's functions."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)


def site() -> dict[str, Any]:
    return yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for each in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from pages(each)


def test_the_navigation_names_every_page_once() -> None:
    named = list(pages(site()["nav"]))
    assert sorted(named) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_the_index_links_to_every_page() -> None:
    linked = set(re.findall(r"\]\((\w+\.md)", (ROOT / "docs/README.md").read_text(encoding="utf-8")))
    assert linked == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}


def test_every_kind_of_broken_link_ends_the_build() -> None:
    kinds = site()["validation"]
    assert {kinds[part][kind] for part, kind in [("nav", "omitted_files"), ("links", "not_found")]} == {"warn"}
    assert kinds["links"]["anchors"] == kinds["links"]["unrecognized_links"] == "warn"
    (command,) = re.findall(r"^\t.*mkdocs build.*$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert "--strict" in command
    assert "--quiet" not in command  # it drops the warnings before they are counted
    assert "make docs" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_the_generator_is_pinned() -> None:
    lines = (ROOT / "requirements-docs.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins and all(re.fullmatch(r"[\w-]+==[\d.]+", pin) for pin in pins)
