"""State at rest: what the stores of a checkpoint hold after a batch, by Spark's own reader."""
