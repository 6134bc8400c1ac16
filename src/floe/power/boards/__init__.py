"""Board models: published measurements in, latency and power of a step out. Always modelled."""
