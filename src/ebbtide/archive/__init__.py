"""A topic in, its Delta copy out, and of that copy the records of a range of event time."""
