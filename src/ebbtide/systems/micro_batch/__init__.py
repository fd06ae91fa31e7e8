"""Print visits batch by batch from inside the tasks."""

__all__: list[str] = []
