import time


def test_hang():
    time.sleep(3600)
