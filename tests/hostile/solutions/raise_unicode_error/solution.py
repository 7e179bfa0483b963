def median(xs):
    b"\xff".decode()


roman = merge = median
