import pytest
from solution import median, merge, roman


def test_median():
    assert median([4, 1, 2, 3]) == 2.5
    with pytest.raises(ValueError):
        median([])


def test_roman_and_merge():
    assert roman(4) == "IV" and merge([[1, 2], [2, 3]]) == [[1, 3]]
