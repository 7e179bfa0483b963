def median(xs):
    return None


roman = merge = median
