import pytest
from solution import median


@pytest.mark.parametrize("number", range(20))
def test_many(number):
    assert median([1]) == 1
