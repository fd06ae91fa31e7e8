"""The audit log of the web UI: what it changed or refused, one line each."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ebbtide.config import open_private
from ebbtide.errors import EbbtideError, mask
from ebbtide.notes import parse_lines
from ebbtide.processes import whoami
from ebbtide.times import in_utc

_LONGEST = 500
"""Maximum length of a value: visitors must not fill the log."""


class AuditLog:
    """The audit log of one home."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()

    def write(self, action: str, target: str, outcome: str) -> None:
        """Add a line: who did what to which target, and with what outcome.

        >>> import tempfile
        >>> audit = AuditLog(Path(tempfile.mkdtemp()) / "audit.jsonl")
        >>> audit.write("rewind to batch 5", "/data/visits", "done")
        >>> audit.read()[0]["outcome"]
        'done'
        """
        texts = {"action": action, "target": target, "outcome": outcome}
        line = {
            "at": in_utc(datetime.now(timezone.utc)),
            "by": whoami(),
            **{name: mask(text)[:_LONGEST] for name, text in texts.items()},
        }
        try:
            with self._lock:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                with open(self.file, "a", encoding="utf-8", opener=open_private) as stream:
                    stream.write(json.dumps(line) + "\n")
        except OSError as error:
            raise EbbtideError(
                f"The audit log {self.file} cannot be written: {error.strerror}.",
                "Free disk space, fix the permissions, or choose another folder with --home.",
            ) from None

    def read(self, last: int = 500) -> list[Mapping[str, Any]]:
        """The last lines, newest first; an incomplete one is left out."""
        try:
            with self.file.open(encoding="utf-8", errors="replace") as lines:
                newest = deque(lines, maxlen=last)
        except OSError:
            return []
        return list(parse_lines("".join(reversed(newest))))
