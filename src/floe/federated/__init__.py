"""Adapters that devices learn together: train, clip, noise, account, cluster, aggregate."""
