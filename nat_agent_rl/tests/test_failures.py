"""What ends `nat finetune`: code 1, and one sentence that says what, where, and what to do."""

import time
from collections.abc import Callable

import pytest
from conftest import FakeTrainer, Finetuning, free_port, rows, the_error

Start = Callable[..., FakeTrainer]
Make = Callable[[str], Finetuning]


def test_a_server_that_is_killed_while_episodes_run(fake_trainer: Start, finetuning: Make) -> None:
    server = fake_trainer(die_after=40)
    run = finetuning(server.url)
    sentence = the_error(run.run("-o", "finetuning.num_epochs", "3"))
    assert server.url in sentence and "serve-trainer" in sentence
    assert [epoch["weight_version"] for epoch in run.epochs()] == [1]


def test_a_server_that_is_killed_while_it_learns(fake_trainer: Start, finetuning: Make) -> None:
    server = fake_trainer(slow_update=10_000)
    run = finetuning(server.url)
    process = run.start()
    deadline = time.monotonic() + 60
    while server.seen()["knobs"]["slow_update"] == 10_000:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    server.end()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1, output + errors
    assert errors.count(f"the trainer at {server.url} does not answer GET /v1/updates/1") == 1


def test_an_update_that_fails(fake_trainer: Start, finetuning: Make) -> None:
    run = finetuning(fake_trainer(fail_update="out of memory").url)
    sentence = the_error(run.run("-o", "finetuning.num_epochs", "3"))
    assert "update 1" in sentence and "out of memory" in sentence
    assert not (run.folder / "out").exists()


def test_an_update_that_never_ends(fake_trainer: Start, finetuning: Make) -> None:
    run = finetuning(fake_trainer(slow_update=10_000).url)
    run.config["trainer_adapters"]["adapter"]["update_timeout_s"] = 1
    assert "update_timeout_s" in the_error(run.run())


def test_a_server_that_has_made_all_its_updates(fake_trainer: Start, finetuning: Make) -> None:
    server = fake_trainer(steps=1)
    run = finetuning(server.url)
    assert "train.steps" in the_error(run.run("-o", "finetuning.num_epochs", "2"))
    assert len(run.epochs()) == 1
    assert server.seen()["open"] == []  # what was played and not trained is forgotten


def test_a_run_in_which_every_episode_failed(fake_trainer: Start, finetuning: Make) -> None:
    server = fake_trainer()
    run = finetuning(server.url).plain()
    run.write("train.jsonl", rows("1 * 2 raises later", "3 * 4 raises first"))
    sentence = the_error(run.run())
    assert "all 8 episodes" in sentence and "ValueError: behind the policy" in sentence
    assert server.seen()["groups"] == [] == server.seen()["open"]


@pytest.mark.parametrize("status", [400, 500])
def test_an_endpoint_that_refuses_everything(fake_trainer: Start, finetuning: Make, status: int) -> None:
    sentence = the_error(finetuning(fake_trainer(status=status).url).run())
    assert "all 16 episodes" in sentence and "as the test wants it" in sentence


def test_no_server_no_key_and_another_key(fake_trainer: Start, finetuning: Make) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert url in the_error(finetuning(url).run())
    run = finetuning(fake_trainer().url)
    assert "AGENT_RL_KEY" in the_error(run.run(key=None))
    assert "key" in the_error(run.run(key="another"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("-o", "finetuning.reward_function.name", "reward"), "answer"),
        (("--endpoint", "http://127.0.0.1:1/generate"), "--endpoint"),
        (("-o", "finetuning.target_model", "gpt"), "target_model"),
        (("-o", "trajectory_builders.builder.rows_per_epoch", "5"), "rows_per_epoch"),
        (("--result_json_path", "$.nothing"), "--result_json_path"),
    ],
)
def test_what_the_plug_in_cannot_do(fake_trainer: Start, finetuning: Make, words: tuple[str, ...], told: str) -> None:
    assert told in the_error(finetuning(fake_trainer().url).run(*words))
