def median(xs):
    raise BaseException("no")


roman = merge = median
