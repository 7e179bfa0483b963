"""A file that a server imports from its own folder."""

GREETING = "hello from the file beside"
