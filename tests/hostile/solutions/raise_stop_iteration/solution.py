def median(xs):
    raise StopIteration


roman = merge = median
