class AssertionError(Exception):
    pass


def median(xs):
    raise AssertionError("no")


roman = merge = median
