def median(xs):
    raise AssertionError("no")


roman = merge = median
