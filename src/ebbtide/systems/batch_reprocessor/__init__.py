"""Count visits, and reprocess a range beside the running stream."""

__all__: list[str] = []
