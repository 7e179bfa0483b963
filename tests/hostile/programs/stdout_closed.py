# MUST: an ordinary end.
import os

os.close(1)
os.close(2)
