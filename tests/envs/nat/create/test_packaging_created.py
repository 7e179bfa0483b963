"""Packages: what they hold, that they are what was judged, that other tools build the same, hostile texts."""

import hashlib
import io
import json
import os
import re
import stat
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from created_agents import ANY, accepted, creator, reference, submission
from nat_projects import spec_of

from agent_rl.envs.nat.create import package
from agent_rl.envs.nat.create.package import read_files, read_zip, save, wheel_files, wheel_name
from agent_rl.envs.nat.create.packaging import digests, fenced, packaged
from agent_rl.envs.nat.create.result import Creation
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.factory.user_test_cases import read_cases
from agent_rl.envs.nat.judge.toolkit import NatToolkit, toolkit_python
from agent_rl.envs.nat.judge.validator.validate import validate_folder
from agent_rl.errors import UserError

SPEC = spec_of("text_pipeline", 2)
HOSTILE = "<script>alert(1)</script> ``` ../../etc/passwd \x1b[31m [x](javascript:alert(1))"


@pytest.fixture(scope="module")
def creation(nat_toolkit: NatToolkit) -> Creation:
    return accepted(nat_toolkit, SPEC, HOSTILE)


def test_a_package_is_the_judged_project_with_pins_a_build_system_and_its_origin(
    creation: Creation, nat_toolkit: NatToolkit, tmp_path: Path
) -> None:
    saved = save(creation, nat_toolkit, tmp_path / "mine", with_zip=True, with_wheel=True)
    files = read_files(saved.folder)
    assert sorted(os.listdir(tmp_path)) == ["mine", "mine.zip", saved.wheel.name]
    assert {path: files[path] for path in SPEC.files if path != "pyproject.toml"} == {
        path: text for path, text in render_project(SPEC).items() if path != "pyproject.toml"
    }
    project = tomllib.loads(files["pyproject.toml"])
    versions = nat_toolkit.versions()
    assert project["project"]["dependencies"] == [
        f"{name}=={versions[name]}" for name in ("nvidia-nat-core", "nvidia-nat-mcp", "mcp")
    ]
    assert project["build-system"]["build-backend"] == "setuptools.build_meta"
    record = json.loads(files["PROVENANCE.json"])
    assert (record["state"], record["request"], record["seed"]) == ("accepted", HOSTILE, 0)
    assert record["provenance"]["model"]["sha256"] == "0" * 64
    assert record["file_sha256"] == digests(files)
    assert record["report"]["shares"]["workflow"] == 1.0
    assert read_zip(saved.zip) == files
    assert f"src/{SPEC.package}/configs/config.yml".removeprefix("src/") in read_zip(saved.wheel)


def test_the_packaged_project_passes_the_validator_with_the_plans_cases(
    creation: Creation, nat_toolkit: NatToolkit, tmp_path: Path
) -> None:
    saved = save(creation, nat_toolkit, tmp_path / "mine")
    cases = read_cases(saved.folder / "cases.jsonl")
    report = validate_folder(nat_toolkit, saved.folder, cases=cases)
    assert report.problems == ()
    assert len(cases) == len(SPEC.plan.test_cases)
    assert validate_folder(nat_toolkit, saved.folder, spec=SPEC).complete


def test_what_a_person_wrote_is_shown_as_text(creation: Creation, nat_toolkit: NatToolkit) -> None:
    page = packaged(creation, nat_toolkit).files["README.md"]
    outside = re.sub(r"^(`{3,})text\n.*?\n\1$", "", page, flags=re.MULTILINE | re.DOTALL)
    assert HOSTILE in page
    assert "script" not in outside and "javascript" not in outside
    assert fenced("a ```` b").startswith("`````text\n")


def test_equal_creations_are_equal_bytes(creation: Creation, nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    one, two = (save(creation, nat_toolkit, tmp_path / name / "a", with_zip=True, with_wheel=True) for name in "xy")
    assert one.zip.read_bytes() == two.zip.read_bytes()
    assert one.wheel.read_bytes() == two.wheel.read_bytes()


def test_files_that_nobody_judged_are_left_out(nat_toolkit: NatToolkit) -> None:
    extra = {"setup.py": "print('hello')", "tests/conftest.py": "", "src/evil.pth": "import os", "README.md": "mine"}
    making = creator(nat_toolkit, [submission({**render_project(SPEC), **extra})], writes=ANY)
    with_plan = packaged(making.create(spec=SPEC), nat_toolkit)
    assert set(extra) & set(with_plan.files) == {"README.md"}
    assert with_plan.files["README.md"] != "mine"
    assert json.loads(with_plan.files["PROVENANCE.json"])["left_out"] == sorted(extra)
    making = creator(nat_toolkit, [submission({**render_project(SPEC), **extra})], writes={**ANY, "free_words": True})
    free = making.create("a text tool")
    assert free.state == "built"
    assert set(extra) & set(packaged(free, nat_toolkit).files) == {"README.md"}


@pytest.mark.parametrize("name", ["x; rm -rf /", '"]\n[tool]', "a" * 100, "../up", ""])
def test_names_that_no_installer_takes_are_refused(nat_toolkit: NatToolkit, name: str) -> None:
    files = render_project(SPEC)
    files["pyproject.toml"] = files["pyproject.toml"].replace(f'name = "{SPEC.package}"', f"name = {json.dumps(name)}")
    making = creator(nat_toolkit, [submission(files)], writes={**ANY, "free_words": True}, creation={"candidates": 1})
    creation = making.create("a text tool")
    with pytest.raises(UserError, match="cannot be packaged"):
        packaged(replace(creation, state="built"), nat_toolkit)


def test_a_rejected_project_is_written_as_it_is_and_marked(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    making = creator(nat_toolkit, [submission({"src/x.py": "x ="})], creation={"candidates": 1}, writes=ANY)
    saved = save(making.create(spec=SPEC), nat_toolkit, tmp_path / "bad", with_zip=True, with_wheel=True)
    files = read_files(saved.folder)
    assert (saved.wheel, set(files)) == (None, {"README.md", "PROVENANCE.json"})  # src/x.py is no file of the plan
    assert "REJECTED" in files["README.md"]
    assert json.loads(files["PROVENANCE.json"])["state"] == "rejected"


def test_a_folder_that_is_not_empty_is_left_alone(creation: Creation, nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        save(creation, nat_toolkit, tmp_path)
    with pytest.raises(UserError, match="is not empty"):
        save(creation, nat_toolkit, tmp_path / "note.txt")
    assert os.listdir(tmp_path) == ["note.txt"]


@pytest.mark.parametrize("place", ["zip_of", "wheel_of", "_check_wheel"])
def test_an_interrupted_save_leaves_nothing(
    creation: Creation, nat_toolkit: NatToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def interrupt(*_arguments: Any, **_named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(package, place, interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(creation, nat_toolkit, tmp_path / "mine", with_zip=True, with_wheel=True)
    assert os.listdir(tmp_path) == []


def test_a_package_that_is_not_what_was_judged_is_not_put_in_place(
    creation: Creation, nat_toolkit: NatToolkit, tmp_path: Path
) -> None:
    broken = {**creation.files, SPEC.logic_path: "def nothing() -> None:\n    return None\n"}
    with pytest.raises(UserError, match="its package is rejected"):
        save(replace(creation, files=broken), nat_toolkit, tmp_path / "mine")
    assert os.listdir(tmp_path) == []


def test_the_wheel_is_the_one_that_setuptools_builds(
    creation: Creation, nat_toolkit: NatToolkit, tmp_path: Path
) -> None:
    saved = save(creation, nat_toolkit, tmp_path / "mine", with_wheel=True)
    pip = [str(toolkit_python()), "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel", "--no-index"]
    words = [*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path / "built"), str(saved.folder)]
    subprocess.run(words, check=True, timeout=400, capture_output=True)
    (built,) = (tmp_path / "built").glob("*.whl")
    assert built.name == saved.wheel.name
    ours, theirs = read_zip(saved.wheel), read_zip(built)
    own = {path for path in ours if ".dist-info/" not in path}
    assert own == {path for path in theirs if ".dist-info/" not in path}
    assert {path: ours[path] for path in own} == {path: theirs[path] for path in own}
    info = saved.wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"
    wanted = set(re.findall(r"^(?:Requires-Dist|Name|Version): .*$", theirs[f"{info}/METADATA"], re.MULTILINE))
    assert wanted <= set(ours[f"{info}/METADATA"].splitlines())
    assert theirs[f"{info}/entry_points.txt"].split() == ours[f"{info}/entry_points.txt"].split()


def test_the_wheel_installs_with_its_configurations(
    creation: Creation, nat_toolkit: NatToolkit, tmp_path: Path
) -> None:
    saved = save(creation, nat_toolkit, tmp_path / "mine", with_wheel=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-index", "--no-deps"]
    words = [*pip, "--target", str(tmp_path / "site"), str(saved.wheel)]
    subprocess.run(words, check=True, timeout=400, capture_output=True)
    assert (tmp_path / "site" / SPEC.package / "configs/config.yml").is_file()
    agent = packaged(creation, nat_toolkit)
    assert wheel_name(agent) == saved.wheel.name
    record = wheel_files(agent)[f"{saved.wheel.name.removesuffix('-py3-none-any.whl')}.dist-info/RECORD"]
    assert len(record.splitlines()) == len(wheel_files(agent))


@pytest.mark.parametrize(
    ("name", "mode"),
    [("../up.py", 0), ("/etc/passwd", 0), ("a/../../b", 0), ("a\\b", 0), ("link", stat.S_IFLNK)],
)
def test_archives_that_reach_out_are_refused(tmp_path: Path, name: str, mode: int) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        archive.writestr(entry, "x")
    with pytest.raises(UserError, match="which no package does"):
        read_zip(tmp_path / "x.zip")


def test_archives_that_are_none_or_too_large_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK no zip")
    with pytest.raises(UserError, match="cannot be read as a zip"):
        read_zip(tmp_path / "x.zip")
    with zipfile.ZipFile(tmp_path / "y.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.py", b"0" * 50_000_000)
    with pytest.raises(UserError, match="more than a package"):
        read_zip(tmp_path / "y.zip")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/a.py").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match="is a link"):
        read_files(tmp_path / "folder")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_archive_is_one_sentence(method: int) -> None:
    content, text = io.BytesIO(), "".join(hashlib.sha256(bytes([number])).hexdigest() for number in range(20))
    with zipfile.ZipFile(content, "w", method) as archive:
        archive.writestr("pyproject.toml", text)
    whole = content.getvalue()
    if method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        assert read_zip(Path("x.zip"), whole) == {"pyproject.toml": text}
    else:
        with pytest.raises(UserError, match=f"'pyproject.toml' compressed by method {method}, expected stored or"):
            read_zip(Path("x.zip"), whole)
    for place in range(44, 80):  # in the file's own bytes
        damaged = bytearray(whole)
        damaged[place] ^= 255
        with pytest.raises(UserError, match=r"x\.zip"):
            read_zip(Path("x.zip"), bytes(damaged))


def test_the_reference_project_of_every_structure_can_be_packaged(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    for family, level in (("unit_converter", 3), ("mcp_served", 2), ("tool_workflow", 3), ("function_group", 4)):
        of = frozenset({"unit_converter", "text_pipeline", "calculator", "code_validator"})
        spec = spec_of(family, level, of=of)
        making = creator(nat_toolkit, [reference(spec)], writes=ANY)
        saved = save(making.create(spec=spec), nat_toolkit, tmp_path / family, with_wheel=True)
        assert validate_folder(nat_toolkit, saved.folder).problems == (), family
