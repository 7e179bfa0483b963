"""A fake of Reasoning Gym: two data sets with its classes' interface."""

from . import factory
from .factory import create_dataset

__version__ = "fake"
__all__ = ["create_dataset", "factory"]
