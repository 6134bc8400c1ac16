"""Joules under a latency goal: meters, knobs, board models, controllers."""
