"""What runs inside the target interpreter: the fork server and its jobs. Standard library only (and pytest in jobs)."""
