"""The audit log of the web UI: what it changed or refused, one line each."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ebbtide.config import open_private
from ebbtide.errors import EbbtideError, mask
from ebbtide.notes import parse_lines
from ebbtide.processes import whoami
from ebbtide.times import in_utc

WEB, COMMAND = "web UI", "command line or API"
"""Where a line comes from."""
_LONGEST = 500
"""Maximum length of a value: visitors must not fill the log."""


def merge_changes(
    own: Iterable[Mapping[str, Any]], changes: Mapping[str, Iterable[Mapping[str, Any]]]
) -> list[Mapping[str, Any]]:
    """The lines of the web UI and the changes that others made to checkpoints, newest first.

    `own` is newest first; `changes` has the audit log of each checkpoint. What the web UI did
    itself is in both, and is shown once.
    """
    lines = [{**line, "from": WEB} for line in own]
    spans = list(_spans(lines))
    for location, made in changes.items():
        for line in made:
            at, batch = str(line.get("at", "")), line.get("first_batch")
            if not any(place == location and start <= at <= end for place, start, end in spans):
                action = str(line.get("action", "")).capitalize()
                action += f" to batch {batch}" if isinstance(batch, int) else ""
                other = {"action": action, "target": location, "outcome": line.get("result", "")}
                lines.append({"at": at, "by": line.get("by", ""), "from": COMMAND, **other})
    return sorted(lines, key=lambda line: str(line.get("at", "")), reverse=True)


def _spans(lines: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Where and from when to when the web UI was at work; without an end, until its next line."""
    until = dict[str, str]()
    for line in lines:
        place, at = str(line.get("target", "")), str(line.get("at", ""))
        if line.get("outcome") == "started":
            yield place, at, until.get(place, "9")
        until[place] = at


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
