def median(xs):
    raise KeyboardInterrupt


roman = merge = median
