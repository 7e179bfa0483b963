"""Shakes hands by hand and dies at every call; notes each of its starts in the file that its argument names."""

import json
import sys

with open(sys.argv[1], "a") as starts:
    starts.write("started\n")
TOOL = {"name": "fall", "inputSchema": {"type": "object", "properties": {}}}
HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "dying", "version": "1"},
}
for line in sys.stdin:
    request = json.loads(line)
    answers = {"initialize": HELLO, "tools/list": {"tools": [TOOL]}}
    if request["method"] == "tools/call":
        sys.exit("I fall")
    if "id" in request:
        answer = {"error": {"code": -32601, "message": "unknown method"}}
        if request["method"] in answers:
            answer = {"result": answers[request["method"]]}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
