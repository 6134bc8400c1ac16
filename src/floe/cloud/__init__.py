"""Clients of the LLM and the wire format of the logit service."""
