import random

import pytest


@pytest.mark.parametrize("number", range(20))
def test_maybe(number):
    assert random.random() < 0.5
