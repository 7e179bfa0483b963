# MUST: the server does not wait for a program that leaves its input alone.
import os

os.close(0)
print("main done")
