"""Two environments of verifiers as one."""

from typing import Any

import verifiers as vf
import vf_reverse
import vf_tools


def load_environment() -> Any:
    return vf.EnvGroup(envs=[vf_reverse.load_environment(4), vf_tools.load_environment()], env_names=["words", "sums"])
