def median(xs):
    value = []
    for _ in range(100_000):
        value = [value]
    return value


roman = merge = median
