"""The HTTP door: OpenAI's API on the edge, the logit service in the cloud."""
