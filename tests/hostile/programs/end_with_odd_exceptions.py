# MUST: an exception that cannot be printed is a failure of the program.
class Odd(BaseException):
    def __str__(self) -> str:
        raise self

    __repr__ = __str__


raise Odd
