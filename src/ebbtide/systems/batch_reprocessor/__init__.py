"""Count visits, and reprocess a range beside the running stream."""
