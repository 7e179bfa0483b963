def median(xs):
    return "x" * 10**8


roman = merge = median
