def median(xs):
    return float("nan")


roman = merge = median
