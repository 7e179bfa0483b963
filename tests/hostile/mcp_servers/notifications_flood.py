# MUST: valid unsolicited messages do not hold the caller beyond its deadline.
import json

while True:
    print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "spam " * 20}}))
