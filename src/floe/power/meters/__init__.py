"""Meters: what a window of time cost in joules, and how far that figure can be trusted."""
