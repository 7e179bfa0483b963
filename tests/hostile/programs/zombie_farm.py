# MUST: dead children without a waiting parent count against the limit and are gone afterwards.
import os

from attack import blocked, pwned

for number in range(500):
    try:
        if os.fork() == 0:
            os._exit(0)
    except OSError as error:
        blocked(f"zombie {number}", error)
        break
else:
    pwned("500 zombies")
os._exit(0)
