from solution import median


def test_wrong():
    assert median([1]) == 2
