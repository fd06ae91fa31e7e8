"""Recorded batches in, the same batches again out, each compared with its first run."""
