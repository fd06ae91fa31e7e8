"""Count pages per browser without state and with it."""

__all__: list[str] = []
