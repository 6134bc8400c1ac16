"""Model files: known by name or reference, pulled from several sources, trusted by hash only."""
