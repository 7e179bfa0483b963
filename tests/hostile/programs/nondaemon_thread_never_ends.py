# MUST: a time-out at the deadline; what was printed before is captured.
import threading
import time

threading.Thread(target=time.sleep, args=(1e6,)).start()
print("before", flush=True)
