"""Ways to turn several adapters into one, each behind `base.Aggregator`."""
