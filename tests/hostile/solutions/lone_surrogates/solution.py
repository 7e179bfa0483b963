def median(xs):
    return "\ud83d\ude00"


roman = merge = median
