# MUST: rights, owner, times, name and attributes of the file outside stay as they are.
import os

from attack import attempt

outside = os.environ["HOSTILE_OUTSIDE"]
attempt("chmod", lambda: os.chmod(outside, 0o777))
attempt("chown", lambda: os.chown(outside, os.getuid(), os.getgid()))
attempt("utime", lambda: os.utime(outside, (0, 0)))
attempt("truncate", lambda: os.truncate(outside, 0))
attempt("setxattr", lambda: os.setxattr(outside, "user.evil", b"1"))
attempt("rename", lambda: os.rename(outside, outside + ".moved"))
attempt("symlink", lambda: os.symlink("x", outside + ".link"))
attempt("mkdir", lambda: os.mkdir(outside + ".folder"))
