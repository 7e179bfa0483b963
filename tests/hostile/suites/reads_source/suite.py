import inspect

import solution


def test_source():
    assert "n // 2" in inspect.getsource(solution)
