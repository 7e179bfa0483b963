# MUST: the run ends with its main program, not when the last holder of the pipe does.
import subprocess

from attack import TOKEN

subprocess.Popen(["sleep", f"9{TOKEN}"], start_new_session=True)
print("main done")
