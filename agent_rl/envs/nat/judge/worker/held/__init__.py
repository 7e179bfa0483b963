"""What the toolkit itself may no longer do for a project while one is held."""
