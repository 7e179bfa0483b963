"""Run a program and grade two answers in the sandbox."""

import sys

from agent_rl.sandbox import CallGrader, Case, Limits, Sandbox

with Sandbox.open(python=sys.executable, size=2) as sandbox:
    run = sandbox.run_python("print(6 * 7)", limits=Limits(wall_s=2.0, memory_mb=256))
    print(run.status, run.stdout, run.tier)

    grader = CallGrader("solution", [Case(function="add", args=(1, 2), expected=3)])
    print(grader.grade(sandbox, {"solution.py": "def add(a, b):\n    return a + b\n"}).score)
    cheat = "class Equal:\n    __eq__ = lambda *_: True\ndef add(a, b):\n    return Equal()\n"
    print(grader.grade(sandbox, {"solution.py": cheat}))
