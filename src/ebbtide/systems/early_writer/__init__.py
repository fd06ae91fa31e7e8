"""Report visits before they end."""

__all__: list[str] = []
