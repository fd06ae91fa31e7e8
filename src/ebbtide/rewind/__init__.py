"""Plan, apply and undo a rewind: the only code that changes a checkpoint."""
