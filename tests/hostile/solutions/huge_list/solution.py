def median(xs):
    return [0] * 10**7


roman = merge = median
