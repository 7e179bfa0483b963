import sys

sys.setrecursionlimit(10**9)


def median(xs):
    return median([median(xs)])


roman = merge = median
