"""One answer from two models: alignment, mixing, drawing."""
