"""Count visits per window as a stream, and rewind it."""

__all__: list[str] = []
