# MUST: ignoring SIGXCPU does not help against the limit of CPU seconds.
import signal

signal.signal(signal.SIGXCPU, signal.SIG_IGN)
while True:
    pass
