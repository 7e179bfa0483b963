# MUST: its end is noticed at once.
import os

os._exit(0)
