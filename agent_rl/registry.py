"""Objects by import path: `import_object("my_package.my_env:MyEnv")`.

Not here: any table of names.
"""

import importlib
from typing import Any

from agent_rl.errors import ConfigError


def import_object(path: str) -> Any:
    """The attribute that `module:attribute` names; ConfigError where there is no such module or attribute."""
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise ConfigError(f"{path!r}: there is no module {error.name!r}; check the path and PYTHONPATH") from None
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigError(f"{path!r}: module {module_name!r} has no attribute {attribute!r}") from None
