"""Writes lines that are no messages, without end."""

while True:
    print("bla", flush=True)
