"""Two-ended protections of updates: clip, noise, quantize, secure sums."""
