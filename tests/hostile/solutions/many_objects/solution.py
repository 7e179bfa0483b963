class Thing:
    pass


def median(xs):
    return [Thing() for _ in range(20_000)]


roman = merge = median
