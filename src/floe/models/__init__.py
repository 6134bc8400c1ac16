"""Model files: sources, hash check, cache folder."""
