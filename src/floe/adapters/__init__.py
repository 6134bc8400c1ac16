"""Adapters: formats, identity, the store on disk and the cache with leases."""
