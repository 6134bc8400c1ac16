"""Pruning, quality, recovery, the learned search: what of tailoring needs torch."""
