"""Searches for a plan behind `base.Search`: one file each, made by `make_search`."""
