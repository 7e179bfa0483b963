def median(xs):
    while True:
        pass


roman = merge = median
