"""Sessions that report before they end: a pure fold, its state as bytes, and Spark around it."""
