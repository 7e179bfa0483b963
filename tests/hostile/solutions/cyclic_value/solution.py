def median(xs):
    value = []
    value.append(value)
    return value


roman = merge = median
