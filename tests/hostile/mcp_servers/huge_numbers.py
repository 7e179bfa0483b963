# MUST: numbers beyond every type are the server's fault.
import time

print('{"jsonrpc": "2.0", "id": 1e999, "result": ' + "9" * 20000 + "}", flush=True)
time.sleep(1e6)
