# MUST: half a line is no line: the deadline of the request ends it.
import sys
import time

sys.stdout.write('{"jsonrpc": "2.0", "id": 1, "result": {')
sys.stdout.flush()
time.sleep(1e6)
