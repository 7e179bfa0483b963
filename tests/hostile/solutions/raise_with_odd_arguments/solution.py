class Odd:
    def __eq__(self, other):
        return True

    __hash__ = None


def median(xs):
    raise KeyError(Odd(), "x" * 10**6)


roman = merge = median
