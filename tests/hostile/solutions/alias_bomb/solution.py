def median(xs):
    value = []
    for _ in range(30):
        value = [value, value]
    return value


roman = merge = median
