"""`nat finetune` as a person types it, against a server that keeps the contract: what is learned, sent and written."""

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from conftest import BIN, KEY, SUMS, FakeTrainer, Finetuning, rows

Start = Callable[..., FakeTrainer]
Make = Callable[[str], Finetuning]


def sent(server: FakeTrainer) -> list[Any]:
    """What was sent for each episode of each update, without its name, which is another in each run."""
    groups = [group for body in server.seen()["groups"] for group in body["groups"]]
    return [(group["task_id"], {**each, "id": ""}) for group in groups for each in group["episodes"]]


def test_a_streaming_agent_learns_and_two_commands_do_what_one_does(fake_trainer: Start, finetuning: Make) -> None:
    server, other = fake_trainer(), fake_trainer()
    run = finetuning(server.url)
    run.config["trajectory_builders"]["builder"] |= {"rows_per_epoch": 3, "seed": 7}
    run.write("held.jsonl", rows(*SUMS))
    options = ("-o", "finetuning.num_epochs", "2", "--validation_dataset", "held.jsonl", "--validation_interval", "1")
    done = run.run(*options)
    assert done.returncode == 0, done.stderr

    seen = server.seen()
    assert seen["open"] == []
    assert len(seen["deleted"]) == 3 * len(SUMS)
    assert {chat["stream"] for chat in seen["chats"]} == {True}
    assert {chat["function"] for chat in seen["chats"]} == {"<workflow>"}
    assert [body["target_functions"] for body in seen["groups"]] == [None, None]
    assert [len(group["episodes"]) for body in seen["groups"] for group in body["groups"]] == [4] * 6
    drawn = [[group["task_id"] for group in body["groups"]] for body in seen["groups"]]
    assert all(len(set(tasks)) == 3 for tasks in drawn) and drawn[0] != drawn[1]

    first, between, second = run.epochs()
    assert [first["epoch"], between["epoch"], second["epoch"]] == [0, 0, 1]
    assert [first["weight_version"], second["weight_version"]] == [1, 2]
    assert first["trainer"] == {"rollout/checked_turns": 24.0}  # every turn, a call and an answer, by its ids
    assert between["held_out"]["weight_version"] == 1
    held_out = json.loads((run.folder / "out/held_out.json").read_text())
    assert [held_out[side]["weight_version"] for side in ("before", "after")] == [0, 2]
    assert held_out["after"]["solved"] > held_out["before"]["solved"] == 2
    assert held_out["change"]["gained"] == held_out["after"]["solved"] - 2
    assert set(held_out["rows"]) == {"row-0", "row-1", "row-2", "row-3"}
    assert f"{100 * held_out['change']['change']:+.1f}" in done.stdout

    run.config["llms"]["policy"]["server"] = run.config["trainer_adapters"]["adapter"]["server"] = other.url
    assert [run.run().returncode for _ in range(2)] == [0, 0]
    assert [line["epoch"] for line in run.epochs()[3:]] == [0, 1]
    assert sent(other) == sent(server)


def test_failures_of_single_episodes_are_scored_or_dropped_and_counted(fake_trainer: Start, finetuning: Make) -> None:
    server = fake_trainer(p_right=1.0)
    run = finetuning(server.url).plain()
    odd = ("raises later", "stop early", "hangs", "raises first", "never asks", "cannot be judged")
    run.write("train.jsonl", rows("1 * 2", *(f"3 * 4 {what}" for what in odd)))
    run.config["eval"]["evaluators"] = {"answer": {"_type": "test_picky"}}
    run.config["trajectory_builders"]["builder"] |= {"group_size": 2, "episode_timeout_s": 2}
    run.config["finetuning"]["target_functions"] = ["helper"]
    done = run.run()
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr

    (body,) = server.seen()["groups"]
    assert body["target_functions"] == ["helper"]
    rewards = [[each["reward"] for each in group["episodes"]] for group in body["groups"]]
    assert rewards == [[1.0, 1.0], *[[0.0, 0.0]] * 3, *[[None, None]] * 3]
    errors = [group["episodes"][0]["error"] for group in body["groups"]]
    assert errors[:5] == [None, None, None, None, "KeyError: 'before the policy'"]
    assert errors[5] == "the workflow ended without a completion of the policy"
    assert "no verdict" in errors[6]
    (epoch,) = run.epochs()
    assert {name: epoch[name] for name in ("episodes", "failed", "dropped", "solved")} == {
        "episodes": 14,
        "failed": 8,
        "dropped": 6,
        "solved": 2,
    }
    assert epoch["first_error"].endswith("/0/1/0: ValueError: behind the policy")
    assert epoch["trainer"]["rollout/checked_turns"] == 8.0

    run.config["trajectory_builders"]["builder"]["failed_episodes"] = "drop"
    assert run.run().returncode == 0
    dropped = [group["episodes"][0]["reward"] for group in server.seen()["groups"][1]["groups"]]
    assert dropped == [1.0, None, None, None, None, None, None]


@pytest.mark.parametrize("what", ["break_after", "error_after"])
def test_a_busy_server_is_waited_for_and_a_broken_stream_drops_one_episode(
    fake_trainer: Start, finetuning: Make, what: str
) -> None:
    server = fake_trainer(busy=5, busy_groups=2, slow_update=2, **{what: 20})
    run = finetuning(server.url)
    done = run.run()
    assert done.returncode == 0, done.stderr
    (epoch,) = run.epochs()
    assert (epoch["episodes"], epoch["failed"], epoch["dropped"]) == (16, 1, 1)
    assert epoch["trainer"]["rollout/dropped"] == 1.0
    assert server.seen()["knobs"]["busy"] == 0


def test_completions_whose_ids_changed_on_the_way_are_not_trained(fake_trainer: Start, finetuning: Make) -> None:
    run = finetuning(fake_trainer(wrong_ids=True).url)
    assert run.run().returncode == 0
    (epoch,) = run.epochs()
    assert epoch["trainer"] == {"rollout/id_mismatches": 16.0}


def test_datasets_of_the_command_are_read_by_their_ending(fake_trainer: Start, finetuning: Make) -> None:
    server = fake_trainer(p_right=1.0)
    run = finetuning(server.url)
    run.write("other.jsonl", [{"id": "007", "question": "What is 2 * 3?", "answer": "6.0"}])
    (run.folder / "other.json").write_text(json.dumps([{"id": "n", "question": "What is 2 * 3?", "answer": "6"}]))
    for name in ("other.jsonl", "other.json"):
        assert run.run("--dataset", name).returncode == 0
    assert [body["groups"][0]["task_id"] for body in server.seen()["groups"]] == ["007", "n"]
    assert [epoch["reward"] for epoch in run.epochs()] == [1.0, 1.0]


def test_outside_of_a_training_the_episode_has_the_name_of_the_run(fake_trainer: Start, finetuning: Make) -> None:
    server = fake_trainer(p_right=1.0)
    run = finetuning(server.url)
    run.start().wait(60)
    trained = len(server.seen()["chats"])
    command = [str(BIN / "nat"), "run", "--config_file", "config.yml", "--input", "What is 6 * 7?"]
    place = {"cwd": run.folder, "env": os.environ | {"AGENT_RL_KEY": KEY, "NAT_TELEMETRY_ENABLED": "false"}}
    done = subprocess.run(command, **place, capture_output=True, text=True, check=False, timeout=100)
    assert "Answer: 42" in done.stdout + done.stderr
    chats = server.seen()["chats"][trained:]
    assert len(chats) == 2 and len({chat["episode"] for chat in chats}) == 1
    assert chats[0]["seed"] is None
