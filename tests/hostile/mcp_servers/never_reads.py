# MUST: a caller that writes more than a pipe holds is not blocked beyond its deadline.
import sys
import time

print('{"jsonrpc": "2.0", "method": "notifications/ready"}', flush=True)
sys.stdin.close()
time.sleep(1e6)
