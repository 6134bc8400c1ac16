"""An adapter's life."""
