def median(xs):
    while True:
        print("x" * 10_000)


roman = merge = median
