# MUST: an answer nested too deep to read is the server's fault.
import time

print('{"jsonrpc": "2.0", "id": 1, "result": ' + "[" * 50000 + "]" * 50000 + "}", flush=True)
time.sleep(1e6)
