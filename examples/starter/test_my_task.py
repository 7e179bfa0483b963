"""`python -m pytest` runs these; they need no model."""

from my_task import MyEnv, MyTask, score

from agent_rl import Message

TASK = {"task_id": "12-4", "question": "How much are 12 stamps at 4 dollars?", "answer": "48"}


def test_only_the_right_answer_in_the_right_form_scores() -> None:
    assert [score(reply, "48") for reply in ("Answer: 48", "48", "Answer: 480", "")] == [1.0, 0.0, 0.0, 0.0]


def test_an_episode_ends_with_the_first_reply_without_a_call() -> None:
    env = MyEnv()
    assert [message.role for message in env.reset(TASK)] == ["system", "user"]
    result = env.step(Message.assistant("Answer: 48"))
    assert (result.reward, result.terminated) == (1.0, True)


def test_no_task_is_both_trained_on_and_held_out() -> None:
    files = MyTask().task_files(seed=0, num_train=None, num_eval=None)
    train, held_out = ({task["question"] for task in files[name]} for name in ("train", "eval"))
    assert (len(train), len(held_out), train & held_out) == (280, 60, set())
