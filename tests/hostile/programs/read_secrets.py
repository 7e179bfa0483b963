# MUST: no key, no password, no file of the project, no file of another run can be read or listed.
import os

from attack import attempt

project, secret, home = (os.environ[f"HOSTILE_{name}"] for name in ("PROJECT", "SECRET", "HOME"))
files = [secret, os.environ["HOSTILE_OUTSIDE"], "/etc/shadow", "/etc/sudoers", f"{home}/.bashrc", f"{home}/.ssh/id_rsa"]
files += [f"{project}/{name}" for name in ("pyproject.toml", "README.md", "agent_rl/errors.py", "tests/conftest.py")]
files += [f"{project}/agent_rl/sandbox/sandbox.py", f"{project}/.git/config"]
files += [f"{prefix}{secret}" for prefix in ("/proc/self/root", "/proc/1/root", "/proc/self/cwd/../../../..")]


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(40)


for path in files:
    attempt(path, lambda p=path: read(p))
for folder in (os.path.dirname(secret), "/var/log", "/var/lib/dpkg", project + "/agent_rl", project + "/tests"):
    attempt(f"list {folder}", lambda f=folder: next(os.scandir(f), None) or read(f + "/nothing here"))
