"""Fuzz every parser: hostile bytes in, a result or one of Ebbtide's errors out, within limits."""
