def median(xs):
    return 1 << 10**7


roman = merge = median
