"""Floe: a private, fast and personal language model runtime for the edge."""

__version__ = "0.1.0"
