"""Controllers: clocks for the next step, by rule, by learning, or with the future known."""
