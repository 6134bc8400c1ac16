"""Knobs: clocks that can be set, each with its bounds and the way back."""
