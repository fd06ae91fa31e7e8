"""Keep what is computed from a snapshot of a checkpoint until the snapshot changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ebbtide.web.snapshots import Snapshot

T = TypeVar("T")


class PerSnapshot(Generic[T]):
    """A value that is computed from a snapshot, once per stamp of each checkpoint."""

    def __init__(self, compute: Callable[[Snapshot], T]) -> None:
        self._compute = compute
        self._values: dict[str, tuple[str, T]] = {}
        self._lock = threading.Lock()

    def get(self, snapshot: Snapshot) -> T:
        """The value of a snapshot."""
        with self._lock:
            if self._values.get(snapshot.key, ("",))[0] != snapshot.stamp:
                self._values[snapshot.key] = (snapshot.stamp, self._compute(snapshot))
            return self._values[snapshot.key][1]
