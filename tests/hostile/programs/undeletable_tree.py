# MUST: folders without rights and nested thousands deep cost nothing after the run.
import os

os.makedirs("locked/inner")
open("locked/inner/file", "w").close()
os.chmod("locked/inner", 0)
os.chmod("locked", 0)
os.mkdir("deep")
os.chdir("deep")
made = 0
try:
    for _ in range(400):  # 400 names of 250 letters: far beyond the longest path
        os.mkdir("d" * 250)
        os.chdir("d" * 250)
        made += 1
except OSError:
    pass
print("main done", flush=True)
