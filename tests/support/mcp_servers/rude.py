"""Speaks by hand, one request after the other, and answers as its tools' names say; notes its starts in the file named.

`slow` sleeps; `big` answers with a line of so many megabytes, in parts; `broken` and `listed` with lines that are no
messages; `odd` with a result that is none. A second argument adds tools of the names that are in it, by commas.
"""

import json
import sys
import time

with open(sys.argv[1], "a") as starts:
    starts.write("started\n")
NAMES = ["slow", "big", "broken", "listed", "odd", *"".join(sys.argv[2:]).split(",")]
SCHEMA = {"type": "object", "properties": {"seconds": {"type": "number"}, "megabytes": {"type": "integer"}}}
TOOLS = [{"name": name, "inputSchema": SCHEMA} for name in NAMES if name]
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "rude", "version": "1"}}


def say(line: str) -> None:
    print(line, flush=True)


def call(number: int, name: str, arguments: dict) -> None:
    begin = f'{{"jsonrpc": "2.0", "id": {number}, "result": '
    if name == "big":
        sys.stdout.write(begin + '{"content": [{"type": "text", "text": "')
        for _ in range(arguments["megabytes"]):
            sys.stdout.write("x" * 1_000_000)
            time.sleep(0.001)
        say('"}]}}')
    elif name == "broken":
        say(begin + '{"content": [{"type": "text", "text": NaN')
    elif name == "listed":
        say(f'{{"result": [{{"id": 1}}], "id": {number}, "jsonrpc": "2.0"}}')
    elif name == "odd":
        say(begin + '{"content": 5}}')
    else:
        time.sleep(arguments["seconds"])
        say(begin + '{"content": [{"type": "text", "text": "slept"}]}}')


for line in sys.stdin:
    request = json.loads(line)
    answers = {"initialize": HELLO, "tools/list": {"tools": TOOLS}}
    if request["method"] == "tools/call":
        call(request["id"], request["params"]["name"], request["params"]["arguments"])
    elif "id" in request:
        known = request["method"] in answers
        answer = {"result": answers[request["method"]]} if known else {"error": {"code": -32601, "message": "unknown"}}
        say(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}))
