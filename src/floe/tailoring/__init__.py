"""A model made for one device: profile, plan, search, prune, recover, quantize, export."""
