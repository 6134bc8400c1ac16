"""Nouns that cross borders between the parts, the error tree and the configuration."""
