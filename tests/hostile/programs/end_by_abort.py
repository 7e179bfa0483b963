# MUST: a crash of the program is an answer, and leaves no core file.
import os

os.abort()
