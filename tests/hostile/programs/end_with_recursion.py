# MUST: endless recursion is a failure of the program, also where the C stack gives out first.
import sys

sys.setrecursionlimit(10**9)


class Deep:
    def __getattr__(self, name: str) -> object:
        return getattr(self, name + "x")


print(Deep().x)
