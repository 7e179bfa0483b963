# MUST: killed at the deadline.
while True:
    pass
