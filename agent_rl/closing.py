"""Objects that hold something until they are closed, as context managers."""

from typing import Self


class Closing:
    """`with thing: ...` ends with `thing.close()`, whatever happens."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what is held; once or more often."""
        raise NotImplementedError
