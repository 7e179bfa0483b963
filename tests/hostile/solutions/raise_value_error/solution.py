def median(xs):
    raise ValueError("always")


roman = merge = median
