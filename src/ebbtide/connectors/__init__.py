"""The external systems that a pipeline reads and writes, one folder for each."""
