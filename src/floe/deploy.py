"""A device's life."""
