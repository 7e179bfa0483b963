import time


def median(xs):
    time.sleep(3600)


roman = merge = median
