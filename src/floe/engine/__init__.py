"""Tokens through a model: llama.cpp to serve, torch as the reference and to train."""
