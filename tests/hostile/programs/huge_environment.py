# MUST: an environment beyond every bound is refused, and nothing else breaks.
import os
import subprocess
import sys

from attack import attempt

attempt("one variable", lambda: subprocess.run(["true"], env={"X": "x" * (1 << 20)}, check=True))
attempt("many", lambda: subprocess.run(["true"], env={f"X{i}": "x" * 100000 for i in range(400)}, check=True))
attempt("arguments", lambda: subprocess.run(["true", "x" * (1 << 20)], check=True))
os.environ["LATE"] = "x" * (1 << 20)
print(len(sys.argv), flush=True)
