# MUST: writing ends with an error at the quota of the run.
from attack import attempt


def fill() -> str:
    for number in range(12):
        with open(f"file{number}", "wb", buffering=0) as file:
            for _ in range(6):
                file.write(b"x" * (1 << 20))
    return "72 MiB"


attempt("disk", fill)
