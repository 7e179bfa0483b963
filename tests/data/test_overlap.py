"""Held-out tasks that were trained on."""

from agent_rl.data.overlap import overlap_of


def test_equal_rows_count_whatever_their_ids_are() -> None:
    train = [{"task_id": "a", "question": "1+1", "answer": "2"}, {"task_id": "b", "question": "1+2", "answer": "3"}]
    again = {"task_id": "c", "answer": "2", "question": "1+1"}
    assert overlap_of(train, [again, {"task_id": "b", "question": "2+2", "answer": "4"}]).startswith("1 of 2 held-out")
    assert overlap_of(train, [{"task_id": "a", "question": "1+1", "answer": "02"}]) == ""
    assert overlap_of(train, []) == overlap_of([], train) == ""
