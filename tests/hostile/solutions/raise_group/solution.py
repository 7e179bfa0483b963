def median(xs):
    raise ExceptionGroup("many", [SystemExit(0)] and [KeyError()])


roman = merge = median
