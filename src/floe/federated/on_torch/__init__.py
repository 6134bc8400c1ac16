"""Local training and what it costs: what of an adapter's life needs torch."""
