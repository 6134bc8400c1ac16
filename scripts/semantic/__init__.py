"""The training of the semantic privacy score."""
