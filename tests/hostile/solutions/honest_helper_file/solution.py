from helper import median, merge, roman  # noqa: F401
