# MUST: nothing is open but input, output, errors and the write end of this run's own report: no terminal, no socket.
import fcntl
import os
import stat

from attack import blocked, pwned

REPORT_FD = 3
for descriptor in range(512):
    try:
        kind = os.fstat(descriptor).st_mode
    except OSError:
        continue
    what = f"{descriptor}: {kind:o} {os.readlink(f'/proc/self/fd/{descriptor}')}"
    own_report = descriptor == REPORT_FD and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
    if (descriptor > 2 and not own_report) or stat.S_ISSOCK(kind) or stat.S_ISDIR(kind) or os.isatty(descriptor):
        pwned(what)
    else:
        blocked(what)
