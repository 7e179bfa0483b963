import solution


def test_source():
    assert "n // 2" in solution.os.popen("cat */solution.py").read() or solution.system("true") == 0
