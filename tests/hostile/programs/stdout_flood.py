# MUST: killed at the cap on output, long before the deadline.
while True:
    print("spam " * 1000)
