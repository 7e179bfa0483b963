# MUST: answers that come before their question are dropped, or are the server's own loss: never another call's.
import json
import sys

for number in range(200):
    print(json.dumps({"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": "early"}]}}))
sys.stdout.flush()
sys.stdin.read()
