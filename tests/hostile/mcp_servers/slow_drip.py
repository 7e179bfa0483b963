# MUST: a message every moment does not put off the deadline of the request.
import json
import time

while True:
    print(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress"}), flush=True)
    time.sleep(0.1)
