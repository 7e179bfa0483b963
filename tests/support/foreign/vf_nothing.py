"""A module that is no environment."""
