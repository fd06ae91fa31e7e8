"""A pipeline in, a running query out."""
