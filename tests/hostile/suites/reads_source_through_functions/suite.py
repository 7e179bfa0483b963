import solution


def test_source():
    assert solution.median.__code__.co_code and "n // 2" in solution.__loader__.get_source("solution")
