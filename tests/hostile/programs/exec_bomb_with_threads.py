# MUST: a program that starts threads and replaces itself again and again is still one run that ends.
import os
import sys

SOURCE = """
import os, sys, threading, time
generation = int(sys.argv[2])
for _ in range(4):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
if generation < 4:
    os.execv(sys.executable, [sys.executable, "-I", "-c", sys.argv[1], sys.argv[1], str(generation + 1)])
print("BLOCKED generation", generation, flush=True)
os._exit(0)
"""
os.execv(sys.executable, [sys.executable, "-I", "-c", SOURCE, SOURCE, "0"])
