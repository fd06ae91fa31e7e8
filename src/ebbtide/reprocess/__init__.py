"""A range of event time in, the same logic over the archive out, beside the running stream."""
