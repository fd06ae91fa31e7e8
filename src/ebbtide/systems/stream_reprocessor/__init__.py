"""Count visits per window as a stream, and rewind it."""
