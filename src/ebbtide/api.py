"""The verbs of the public API; each does what the command of the same name does."""
