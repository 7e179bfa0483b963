def median(xs):
    raise GeneratorExit


roman = merge = median
