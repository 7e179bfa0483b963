# MUST: no run is told when another one opens, reads or leaves a file that both can see.
import fcntl
import os
import sys

from attack import attempt, expect_refusal

expect_refusal("inotify_init1", 0)
expect_refusal("inotify_add_watch", 0, b"/usr/lib", 0x20)
expect_refusal("fanotify_init", 0, 0)
folder = os.open(os.path.dirname(os.__file__), os.O_RDONLY)
attempt("dnotify", lambda: fcntl.fcntl(folder, 1026, 0x80000020))
file = os.open(sys.executable, os.O_RDONLY)
attempt("lease", lambda: fcntl.fcntl(file, 1024, fcntl.F_RDLCK))
attempt("lease asked for", lambda: fcntl.fcntl(file, 1025))
