"""The body of an answer over HTTP, read up to a number of bytes. Not here: how long that may take, what is in it."""

import httpx

UNPACKED = {"accept-encoding": "identity"}
"""The header of a request whose answer is read here."""


class WebBodyError(Exception):
    """A body that is too long, or may be; the text says it of who sent it: `gave an answer of more than 10 bytes`."""


async def read_web_body(response: httpx.Response, max_bytes: int) -> bytes:
    """The body of an answer that is streamed. WebBodyError for one that is longer, or packed in spite of `UNPACKED`."""
    if response.headers.get("content-encoding", "identity") != "identity":  # unpacked it may be of any length
        raise WebBodyError("packed its answer although it was asked not to")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > max_bytes:
            raise WebBodyError(f"gave an answer of more than {max_bytes} bytes")
    return bytes(body)
