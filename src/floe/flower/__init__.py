"""Flower's apps: messages in, calls of `learn` out. The only door to `flwr`."""
