"""The acceptance run for GPUs on a CPU: its parts, tiny; what is run again and what is not; alarms and the report."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from acceptance import child, models, parity, runner
from acceptance.expectations import alarm, rows
from acceptance.figures import DONE, FAILED, SKIPPED, Recorder, Result, Setting, read_result, write_result
from acceptance.report import NOT_MEASURED, alarms, is_accepted, make_report, read_all
from acceptance.runs import reward_gap

from agent_rl.errors import UserError
from agent_rl.modeling import packed_attention

SCRIPT = [sys.executable, "scripts/gpu_acceptance.py"]
TINY = {"device": "cpu", "tiny": True}


def script(*words: str | Path, timeout: float = 500.0) -> subprocess.CompletedProcess[str]:
    command = [*SCRIPT, *map(str, words)]
    return subprocess.run(command, cwd=runner.ROOT, capture_output=True, text=True, timeout=timeout, check=False)


def result(part: str = "parity", *, status: str = DONE, device: str = "cpu", tiny: bool = True, **figures) -> Result:
    return Result(part=part, status=status, device=device, tiny=tiny, figures=figures, machine={"torch": "1.2.3"})


# All parts


@pytest.mark.long
@pytest.mark.timeout(600)
def test_all_parts_run_on_a_cpu_and_a_second_call_runs_nothing(tmp_path: Path) -> None:
    first = script("--tiny", "--device", "cpu", "--output-dir", tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    found = read_all(tmp_path)
    assert list(found) == list(runner.PARTS)
    missing = {part for part, one in found.items() if one.status == SKIPPED}
    assert missing <= {"deepspeed", "vllm", "lora"}
    assert {one.status for part, one in found.items() if part not in missing} == {DONE}
    assert all(one.figures for part, one in found.items() if part not in missing)
    assert found["machine"].machine["torch"] == torch.__version__
    assert found["parity"].figures["float32_segments_max"] < 1e-5
    assert found["law5"].figures["float32_max"] < 1e-4
    assert found["tests"].figures["device_passed"] > 0
    assert found["tests"].figures["device_failed"] == 0
    assert found["default"].figures["steps"] == 2
    assert all(found[f"update_{shape}"].figures["32k_speedup"] > 0 for shape in ("0.5b", "1.5b", "7b"))

    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    second = script("--tiny", "--device", "cpu", "--output-dir", tmp_path)
    assert (second.returncode, second.stdout) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written

    report = script("--report", "--output-dir", tmp_path)
    assert report.returncode == 0
    assert (tmp_path / "report.md").read_text(encoding="utf-8").strip() == report.stdout.strip()
    figures = [line for line in report.stdout.splitlines() if line.count(" | ") == 4 and "---" not in line]
    assert len(figures) == 1 + len(rows())


# Resumed, killed, crashed, out of time


def test_a_part_that_was_killed_with_the_script_is_run_again(tmp_path: Path) -> None:
    words = [*SCRIPT, "--tiny", "--device", "cpu", "--part", "machine", "--output-dir", str(tmp_path)]
    with subprocess.Popen(words, cwd=runner.ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("machine")
        process.kill()
    assert read_result(tmp_path, "machine") is None
    again = script("--tiny", "--device", "cpu", "--part", "machine", "--output-dir", tmp_path)
    assert again.returncode == 0, again.stderr
    assert read_result(tmp_path, "machine").status == DONE


def test_the_process_of_a_part_ends_with_the_script(tmp_path: Path) -> None:
    code = "import os, sys, time; from acceptance import child; import threading; parent = os.getppid()\n"
    code += "threading.Thread(target=child._end_with, args=(parent,), daemon=True).start()\n"
    code += "print(os.getpid(), flush=True); time.sleep(60)"
    outer = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True).wait()"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", outer, code], env=runner.environment(), stdout=subprocess.PIPE, text=True
    )
    inner = int(starter.stdout.readline())
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and Path(f"/proc/{inner}/cmdline").exists():
        if not Path(f"/proc/{inner}/cmdline").read_bytes():
            break  # it has ended, and nobody has asked for its code
        time.sleep(0.1)
    assert not Path(f"/proc/{inner}").exists() or not Path(f"/proc/{inner}/cmdline").read_bytes()


def test_a_part_whose_starter_has_ended_leaves_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(runner.PARTS, "broken", "acceptance.machine:no_such_function")
    found = child.run("broken", tmp_path, **TINY, starter=1 if os.getppid() != 1 else 2)
    assert found.status == FAILED
    assert read_result(tmp_path, "broken") is None
    child.run("broken", tmp_path, **TINY, starter=os.getppid())
    assert read_result(tmp_path, "broken").status == FAILED


@pytest.mark.parametrize("records", [True, False])
def test_out_of_time_a_part_has_a_result_only_if_it_had_all_its_time(tmp_path: Path, records: bool) -> None:
    write_result(tmp_path, result("machine"))
    ended = runner._run("machine", tmp_path, **TINY, limit_s=0.2, command="", records=records)
    assert ended is records
    found = read_result(tmp_path, "machine")
    assert found is None if not records else found.status == FAILED


def test_a_part_that_ends_itself_is_recorded_with_its_figures_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    code = "import os\ndef run(setting, out):\n    out.figure('seen', 3)\n    os._exit(7)\n"
    (tmp_path / "own/ends_itself.py").write_text(code, encoding="utf-8")
    code = "from acceptance import child, runner\nrunner.PARTS['machine'] = 'ends_itself:run'\n"
    (tmp_path / "own/starts.py").write_text(code + "child.main()\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    popen = subprocess.Popen

    def started(words: list[str], **options: object) -> object:
        return popen([word.replace("acceptance.child", "starts") for word in words], **options)

    monkeypatch.setattr(runner.subprocess, "Popen", started)
    assert runner.run_parts(["machine", "vllm"], tmp_path / "out", **TINY) == []
    found = read_all(tmp_path / "out")
    assert (found["machine"].status, found["machine"].figures) == (FAILED, {"seen": 3})
    assert found["vllm"].status in (DONE, SKIPPED)
    assert not is_accepted(found, ["machine", "vllm"])


def test_a_part_that_raises_is_recorded_with_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(runner.PARTS, "machine", "acceptance.machine:no_such_function")
    found = child.run("machine", tmp_path, **TINY)
    assert (found.status, found.reason.split(":")[0]) == (FAILED, "AttributeError")
    assert "no_such_function" in found.traceback
    assert read_result(tmp_path, "machine") == found
    assert "no_such_function" in make_report({"machine": found})


@pytest.mark.parametrize(("part", "package"), [("lora", "peft"), ("deepspeed", "deepspeed"), ("vllm", "vllm")])
def test_a_part_whose_package_is_missing_says_so(
    part: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    found = child.run(part, tmp_path, **TINY)
    assert (found.status, found.reason, found.figures) == (SKIPPED, f"{package} is not installed", {})
    assert is_accepted({part: found}, [part])


def test_without_time_nothing_is_begun(tmp_path: Path) -> None:
    assert runner.run_parts(["machine", "vllm"], tmp_path, **TINY, minutes=0.01) == ["machine", "vllm"]
    assert list(tmp_path.iterdir()) == []


def test_mistakes_of_the_command_are_user_errors(tmp_path: Path) -> None:
    assert runner.chosen_parts(["update", "law5"]) == ["law5", "update_0.5b", "update_1.5b", "update_7b"]
    assert runner.chosen_parts([]) == list(runner.PARTS)
    with pytest.raises(UserError, match="machin"):
        runner.chosen_parts(["machin"])
    write_result(tmp_path, result("machine", device="cuda", tiny=False))
    with pytest.raises(UserError, match="another --output-dir"):
        runner.run_parts(["vllm"], tmp_path, **TINY)
    (tmp_path / "machine.json").write_text("[]", encoding="utf-8")
    assert script("--report", "--output-dir", tmp_path).returncode == 2
    assert script("--report", "--output-dir", tmp_path / "nowhere").returncode == 2


# Alarms and the report


@pytest.mark.parametrize("value", [1e-3, float("nan"), "out of memory"])
def test_a_wrong_figure_is_an_alarm_wherever_it_was_measured(value: float | str, tmp_path: Path) -> None:
    for part in runner.PARTS:
        write_result(tmp_path, result(part))
    assert is_accepted(read_all(tmp_path), list(runner.PARTS))
    write_result(tmp_path, result(float32_segments_max=value))
    found = read_all(tmp_path)
    assert [line.split(":")[0] for line in alarms(found)] == ["parity/float32_segments_max"]
    assert not is_accepted(found, list(runner.PARTS))
    lines = [line for line in make_report(found).splitlines() if "ALARM" in line]
    assert len(lines) == 1
    assert script("--report", "--output-dir", tmp_path).returncode == 1


def test_speed_and_memory_are_alarms_on_a_gpu_only() -> None:
    (row,) = [row for row in rows() if (row.part, row.figure) == ("update_7b", "16k_mfu")]
    of = {"16k_mfu": 0.05}
    assert alarm(row, result("update_7b", device="cuda", tiny=False, **of))
    assert not alarm(row, result("update_7b", device="cuda", tiny=True, **of))
    assert not alarm(row, result("update_7b", device="cpu", tiny=False, **of))
    assert not alarm(row, result("update_7b", device="cuda", tiny=False, **{"16k_mfu": 0.5}))
    assert alarm(row, result("update_7b", device="cuda", tiny=False, **{"16k_mfu": "out of memory"}))


def test_a_report_has_a_row_for_every_figure_and_invents_none() -> None:
    empty = make_report({})
    assert empty.count(NOT_MEASURED) == len(rows())
    one = make_report({"machine": result("machine", product_tflops=712.3, extra=5)})
    assert one.count(NOT_MEASURED) == len(rows()) - 1
    assert "| 712 | 650 to 790 (H100, H200) |" in one
    assert "machine/extra 5" in one
    assert "torch 1.2.3" in one
    pairs = [(row.part, row.figure) for row in rows()]
    assert len(set(pairs)) == len(pairs)
    assert {row.part for row in rows()} == set(runner.PARTS)


def test_attention_that_computes_something_else_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = packed_attention.packed_attention

    def off(*args: torch.Tensor, **options: object) -> torch.Tensor:
        return 1.03 * right(*args, **options)

    monkeypatch.setattr(packed_attention, "packed_attention", off)
    out = Recorder(tmp_path / "partial")
    parity._compare_attention(Setting(**TINY, folder=tmp_path), out)
    wrong = [line.split(":")[0] for line in alarms({"parity": result(**out.figures)})]
    assert wrong[:2] == ["parity/float32_segments_max", "parity/float32_segments_mean"]
    assert "parity/bfloat16_segments_max" in wrong


def test_a_pytorch_whose_attention_takes_other_arguments_is_reported_and_not_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.nn.attention import varlen

    assert models.varlen_problem() == ""
    formats = packed_attention._VARLEN_FORMATS
    monkeypatch.setattr(packed_attention, "_VARLEN_FORMATS", formats)
    setting = Setting(device="cuda", tiny=True, folder=tmp_path)
    out = Recorder(tmp_path / "partial")
    models.use_what_fits(setting, out)
    assert (packed_attention._VARLEN_FORMATS, out.notes) == (formats, [])

    monkeypatch.setattr(varlen, "varlen_attn", lambda q, k, v, *, scale=None, is_causal=False: q)
    assert models.varlen_problem() == "varlen_attn has no window_size"
    models.use_what_fits(setting, out)
    assert packed_attention._VARLEN_FORMATS == ()
    assert len(out.notes) == 1
    found = result(device="cuda", tiny=False, varlen_call=models.varlen_problem())
    assert alarms({"parity": found}) == ["parity/varlen_call: varlen_attn has no window_size"]


def test_rewards_are_compared_by_their_noise() -> None:
    def run(mean: float, std: float) -> list[dict[str, float]]:
        return [{"reward/mean": mean, "reward/std": std}] * 2

    # The error of a mean of 2 x 50 episodes is 0.05 each.
    assert reward_gap(run(0.5, 0.5), run(0.5, 0.5), num_episodes=50) == 0
    assert reward_gap(run(0.5, 0.5), run(0.6, 0.5), num_episodes=50) == pytest.approx(0.1 / (0.05 * 2**0.5))
    assert reward_gap(run(1.0, 0.0), run(0.0, 0.0), num_episodes=50) == float("inf")


def test_figures_are_written_as_they_come(tmp_path: Path) -> None:
    out = Recorder(tmp_path / "partial")
    out.figure("a", 1.5)
    out.note("said once")
    out.note("said once")
    assert json.loads((tmp_path / "partial").read_text()) == {"figures": {"a": 1.5}, "notes": ["said once"]}
