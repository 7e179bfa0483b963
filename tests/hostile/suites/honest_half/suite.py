from solution import *  # noqa: F403


def test_median():
    assert median([4, 1, 2, 3]) == 2.5  # noqa: F405


def test_roman():
    assert roman(4) == "IV"  # noqa: F405
