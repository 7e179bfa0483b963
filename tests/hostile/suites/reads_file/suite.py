from pathlib import Path


def test_source():
    assert any("n // 2" in path.read_text() for path in Path("/sandbox").rglob("solution.py"))
