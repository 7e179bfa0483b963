"""Whether the Hugging Face Hub can be asked for a model, found out before Transformers tries for half a minute.

Not here: loading (`hf_loading.py`).
"""

import socket
import urllib.parse
import urllib.request


def is_cached(source: str) -> bool:
    """Whether the hub's cache on this machine holds the model's config."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(source, "config.json"), str)


def hub_unreachable(*, timeout_s: float = 5.0) -> str:
    """Why the hub cannot be reached; empty if it can, or if a proxy stands between."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    if urllib.request.getproxies():
        return ""
    parts = urllib.parse.urlsplit(constants.ENDPOINT)
    try:
        with socket.create_connection((parts.hostname, parts.port or 443), timeout=timeout_s):
            return ""
    except OSError as error:
        return str(error)
