def median(xs):
    return median(xs)


roman = merge = median
