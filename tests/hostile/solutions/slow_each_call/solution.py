import time


def median(xs):
    time.sleep(0.3)


roman = merge = median
