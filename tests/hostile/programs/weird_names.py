# MUST: names with line breaks, with bytes that are no text, and of full length do not break the collection.
import contextlib

for name in (
    b"new\nline",
    b"\xff\xfe",
    b"-rf",
    b" ",
    b"\x1b[2J",
    b"quote'\"",
    b"x" * 255,
    "\u202egpj.exe".encode(),
    b"*",
):
    with contextlib.suppress(OSError), open(name, "wb") as file:
        file.write(b"content")
print("main done")
