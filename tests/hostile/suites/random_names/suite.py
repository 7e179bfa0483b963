import random

import pytest
from solution import median


@pytest.mark.parametrize("number", [random.random()])
def test_median(number):
    assert median([1, 2]) == 1.5
