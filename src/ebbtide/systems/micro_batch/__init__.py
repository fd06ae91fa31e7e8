"""Print visits batch by batch."""
