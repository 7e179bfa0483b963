"""What people type wrong, by the real commands: one sentence, the right hint or none, exit code 2; a bug in a user's
own code is shown with his file and line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT, one_line_error, run_here

TRAIN = ["train", "--config", "configs/math_grpo.yaml"]
SHORT = ["train.steps=1", "rollout.groups_per_step=1", "rollout.group_size=2", "train.warmup_steps=0"]
WARM = ["sft", "--domain", "math", "--output-dir", "TMP/warm", "--num-demonstrations", "1", "--batch-size", "1"]
PREVIEW = ["--preview-tasks", "1"]
ENV = [*TRAIN, *SHORT, "tools.use=[]", "eval.temperatures=[]"]

FILES = {
    "broken.yaml": "run: {name: x\n",
    "list.yaml": "- run\n",
    "empty.yaml": "",
    "twice.yaml": "run: {name: a}\nrun: {name: b}\n",
    "text.jsonl": "What is 2 + 2?\n",
    "columns.jsonl": '{"task_id": "1", "problem": "2 + 2?", "answer": "4"}\n',
    "tests.jsonl": '{"task_id": "1", "prompt": "Add.", "tests": "assert add(1, 1) = 2"}\n',
}
CONFIGURATION = [
    (["train.total_epochs=1"], "train.total_epochs", "'epochs'"),
    (["data.train_batch_size=8"], "data.train_batch_size", "did you mean"),
    (["run.imports=[mine]"], "run.imports", "did you mean"),
    (["trian.steps=3"], "'trian'; did you mean 'train'", None),
    (["train.step=3"], "'train.step'; did you mean 'steps'", None),
    (["--steps", "3"], "train.steps=3", None),
    (["--train.steps", "3"], "train.steps=3", None),
    (["train.steps=many"], "'many'", None),
    (["train.steps=0"], "train.steps", None),
    (["train.steps"], "section.key=value", None),
    (["run=[1]"], "section.key=value", "RunConfig"),
    (["data.train_path=[a]"], "data.train_path = ['a']", "pathlib"),
    (["algorithm.gamma=0.9"], "gamma", None),
    (["algorithm.advantage=grop"], "'grpo'", None),
    (["tools.use=[search, serch]"], "serch", None),
    (["tools.use=[echo]"], "'echo'", "did you mean"),
    (["tools.use=[textwrap:dedent]"], "textwrap.py:", None),
    (["tools.use=[math:sqrt]"], "'math:sqrt'", None),
    (["env.name=maths_qa"], "'math_qa'", None),
    (["env.name=nowhere.py:MyEnv"], "nowhere.py", None),
    (["env.name=nowhere.py"], "nowhere.py:", "did you mean"),
    (["env.options.reward=brief"], "'brief'", "did you mean"),
    (["model.path=nowhere"], "nowhere", None),
    (["policy.type=huggingface", "model.path=mine/nowhere"], "nobody answers", None),
    (["data.train_path=nowhere.jsonl"], "nowhere.jsonl", None),
    (["data.train_path=TMP/text.jsonl"], "text.jsonl:1", None),
    (["data.train_path=TMP/columns.jsonl"], "columns.jsonl:1", None),
    (["log.trackers=[wandbb]"], "'wandb'", None),
    (["run.device=gpu"], "run.device", None),
]
"""Words behind `agent-rl train --config ...`, what the sentence says, and what it must not say."""
COMMANDS = [
    (["trian"], "'train'", None),
    (["train"], "--config", None),
    (["train", "--config", "nowhere.yaml"], "nowhere.yaml", None),
    ([*TRAIN, "--config=configs/hello.yaml"], "--config is given twice", None),
    (["check-data", "x.jsonl", "--config", "configs/hello.yaml", "--config", "a.yaml"], "given twice", None),
    (["train", "--config", "configs"], "configs is a folder", None),
    (["train", "--config", "TMP/broken.yaml"], "broken.yaml", None),
    (["train", "--config", "TMP/list.yaml"], "list", None),
    (["train", "--config", "TMP/empty.yaml"], "empty.yaml", None),
    (["train", "--config", "TMP/twice.yaml"], "twice.yaml", None),
    ([*TRAIN, "--model-path", "a", "--hf-model-name", "b"], "give one of them", None),
    ([*TRAIN, "--dataset-dir", "dataset"], "dataset/train", None),
    (["train", "--config", "configs/code_exec_grpo.yaml", "data.train_path=TMP/tests.jsonl"], "tests.jsonl:1", None),
    (["eval", "--config", "configs/math_grpo.yaml"], "--output-dir", None),
    (["eval", "--config", "configs/math_grpo.yaml", "--output-dir", "TMP/e", "--checkpoint", "no"], "no:", None),
    (["eval", "--config", "configs/math_grpo.yaml", "--output-dir", "TMP/e", "--task-timeout", "nan"], "--task-", None),
    (["eval", "--config", "configs/math_grpo.yaml", "--output-dir", "TMP/e", "--task-timeout", "0"], "--task-", None),
    (["eval", "--config", "configs/math_grpo.yaml", "--output-dir", "TMP/e", "--temperature", "inf"], "--temp", None),
    (["eval", "--config", "configs/math_grpo.yaml", "--output-dir", "TMP/e", "--task-timeout", "inf"], "--task-", None),
    (["play", "--config", "configs/math_grpo.yaml", "--temperature", "inf"], "--temperature", None),
    (["report", "nowhere"], "nowhere", None),
    (["view", "nowhere"], "nowhere", None),
    (["check-data", "nowhere.jsonl"], "nowhere.jsonl", None),
    (["prepare-tasks", "--domain", "maths", "--output-dir", "TMP/tasks"], "'maths'", None),
    (["sft", "--domain", "hello", "--output-dir", "TMP/warm"], "hello", None),
    *(([*WARM, "--learning-rate", rate], rate, None) for rate in ("nan", "inf", "-1.0")),
    (["play", "--config", "configs/math_grpo.yaml", "--temperature", "inf"], "--temperature", None),
    (["chat", "--config", "configs/math_grpo.yaml", "--temperature", "inf"], "--temperature", None),
    (
        ["eval", "--config", "configs/math_grpo.yaml", "--output-dir", "TMP/e", "--temperature", "inf"],
        "--temperature",
        None,
    ),
    (["init", "README.md"], "README.md", None),
    (["translate", "/dev/zero"], "/dev/zero", None),
    (["plan", "--config", "configs/math_grpo.yaml", "--set", "gpu=4"], "gpu", None),
]


def named(value: object) -> str:
    return " ".join(value)[:50] if isinstance(value, list) else ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_rl.policies.hub.hub_unreachable", lambda: "nobody answers")


def refused(folder: Path, words: list[str]) -> str:
    """The sentence; nothing was trained, and no run has the name."""
    before = set(folder.rglob("*"))
    line = one_line_error(run_here(*(word.replace("TMP", str(folder)) for word in words)))
    made = {path for path in set(folder.rglob("*")) - before if path.is_file()}
    assert made == set()
    assert "Traceback" not in line and "pydantic" not in line
    assert len(line) < 700
    return line


def test_these_are_more_than_thirty() -> None:
    assert len({tuple(words) for words, *_ in CONFIGURATION + COMMANDS}) >= 40


@pytest.mark.parametrize(("words", "said", "unsaid"), CONFIGURATION, ids=named)
def test_a_wrong_configuration_is_one_sentence(folder: Path, words: list[str], said: str, unsaid: str | None) -> None:
    line = refused(folder, [*TRAIN, *SHORT, f"run.output_dir={folder}/runs", *words])
    assert said in line
    assert unsaid is None or unsaid not in line.partition("; known")[0]


@pytest.mark.parametrize(("words", "said", "unsaid"), COMMANDS, ids=named)
def test_a_wrong_command_is_one_sentence(folder: Path, words: list[str], said: str, unsaid: str | None) -> None:
    assert said in refused(folder, words)


BUGGY = """
from agent_rl import AgentEnv, Message, StepResult


def look_up(table, key):
    return table[key]  # line 6


class MyEnv(AgentEnv):
    def reset(self, task):
        return [Message.user(task["question"])]

    def step(self, message):
        return {step}


def my_reward(prediction, answer):
    return 1 / (len(answer) - len(answer))  # line 18


def leaves(prediction, answer):
    raise SystemExit(9)  # line 22
"""


@pytest.mark.parametrize(
    ("step", "words", "said"),
    [
        ("look_up({}, 'oops')", ["env.name=MINE:MyEnv"], "KeyError: 'oops' at MINE:6 in look_up"),
        ("0.5", ["env.name=MINE:MyEnv"], "MyEnv.step"),
        ("StepResult(reward=float('nan'), terminated=True)", ["env.name=MINE:MyEnv"], "nan"),
        ("None", ["env.options.reward=MINE:my_reward"], "MINE:18 in my_reward"),
        ("exit(5)", ["env.name=MINE:MyEnv"], "SystemExit: 5 at MINE:14 in step"),
        ("None", ["env.options.reward=MINE:leaves"], "SystemExit: 9 at MINE:22 in leaves"),
    ],
)
def test_a_bug_of_ones_own_is_shown_with_file_and_line(tmp_path: Path, step: str, words: list[str], said: str) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(BUGGY.replace("{step}", step))
    words = [word.replace("MINE", str(mine)) for word in words]
    done: subprocess.CompletedProcess[str] = run_here(*ENV, *words, f"run.output_dir={tmp_path}/runs")
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert said.replace("MINE", str(mine)) in line
    assert "Traceback" not in done.stderr
    assert (tmp_path / "runs/math_grpo/errors.jsonl").is_file()


def test_code_that_changes_the_working_folder_ends_the_run_in_a_sentence(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("import os\n" + BUGGY.replace("{step}", "os.chdir('/') or StepResult(reward=0.0, terminated=True)"))
    done = run_here(*ENV, f"env.name={mine}:MyEnv", f"run.output_dir={tmp_path}/runs")
    assert "os.chdir" in one_line_error(done)


OWN = """
from agent_rl import AgentEnv, EnvFactory, Message, StepResult


class NoArgs(AgentEnv):  # line 5
    def reset(self):
        return [Message.user("x")]

    def step(self, message):
        return StepResult(reward=1.0, terminated=True)


class StepTwo(NoArgs):  # line 13
    def reset(self, task):
        return [Message.user("x")]

    def step(self, message, extra):
        return StepResult(reward=1.0, terminated=True)


class NoStep(AgentEnv):  # line 21
    def reset(self, task):
        return [Message.user("x")]


class Async(StepTwo):
    async def reset(self, task):  # line 27
        return [Message.user("x")]

    async def close(self):
        return None


def one(x):  # line 34
    return x


def typo(predicton, answer):  # line 38
    return 1.0


def no_return(prediction, answer):  # line 42
    score = 1.0


def lines(prediction):
    raise ValueError("first\\nsecond")  # line 47


def silent(prediction):
    assert prediction is None  # line 51


def maker(options, seed):  # line 54
    return NoArgs
"""


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("env.name=MINE:NoArgs", "MINE:5"),
        ("env.name=MINE:StepTwo", "MINE:13"),
        ("env.name=MINE:NoStep", "NoStep (MINE:21) has no step"),
        ("env.name=MINE:Async", "Async.reset (MINE:27) is async"),
        ("env.name=MINE:one", "(MINE:34) takes (x), expected (options, seed)"),
        ("env.name=MINE:maker", "(MINE:54) gives"),
        ("algorithm.advantage=MINE:one", "(MINE:34) gave StepRewards"),
        ("algorithm.loss=MINE:one", "(MINE:34) takes (x)"),
        ("env.options.reward=MINE:typo", "(MINE:38)"),
        ("env.options.reward=MINE:no_return", "(MINE:42)"),
        ("env.options.reward=MINE:lines", "ValueError: first second at MINE:47 in lines"),
        ("env.options.reward=MINE:silent", "AssertionError at MINE:51 in silent"),
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_code_of_ones_own_of_the_wrong_form_is_one_sentence_with_its_line(tmp_path: Path, word: str, said: str) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(OWN)
    done = run_here(*ENV, word.replace("MINE", str(mine)), f"run.output_dir={tmp_path}/runs")
    assert done.returncode == 2, done.stdout + done.stderr
    errors = done.stderr.splitlines()
    (place,) = (number for number, line in enumerate(errors) if line.startswith("error: "))
    assert said.replace("MINE", str(mine)) in errors[place] and place == len(errors) - 1
    assert "Traceback" not in done.stderr
    if "episodes failed" in errors[place]:
        rows = (tmp_path / "runs/math_grpo/errors.jsonl").read_text(encoding="utf-8").splitlines()
        assert json.loads(rows[0])["count"] == 2


def test_a_run_whose_prompts_leave_no_room_is_refused_and_not_told_to_take_easier_tasks(tmp_path: Path) -> None:
    tasks = tmp_path / "long.jsonl"
    tasks.write_text(json.dumps({"task_id": "1", "question": "How many are 2 plus 2? " * 300, "answer": "4"}))
    done = run_here(*TRAIN, *SHORT, "eval.temperatures=[]", f"data.train_path={tasks}", f"run.output_dir={tmp_path}")
    assert done.returncode == 2
    assert "policy.max_context" in done.stderr and "too hard" not in done.stdout
    assert not list(tmp_path.rglob("step_*"))


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_plan_without_a_standard_output_still_ends_as_it_should(words: list[str]) -> None:
    command = [sys.executable, "-m", "agent_rl.scripts.cli", "plan", "--config", "configs/hello.yaml", *words]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
