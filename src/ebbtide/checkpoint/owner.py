"""Read whose checkpoint it is: the note that a run of a pipeline leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ebbtide.checkpoint.layout import OWNER
from ebbtide.notes import decode, parse_note
from ebbtide.storage import Folder


class _TopicId(NamedTuple):
    id: str
    since_batch: int


@dataclass(frozen=True)
class Owner:
    """The query that runs on a checkpoint, what it reads and where it writes."""

    pipeline: str | None = None
    """The name of the pipeline, or of a query that a program of somebody's own started."""
    event_time: str | None = None
    """The field that holds the event time."""
    source: Mapping[str, Any] | None = None
    """Its kind and path; of a topic, also the ids that it had, each since which batch."""
    sink: Mapping[str, Any] | None = None
    """Its kind, name and path."""
    location: str | None = None
    """Where the checkpoint lay then: a copy of it has the same note, and may write elsewhere."""
    is_attached: bool | None = None
    """Whether a program of somebody's own runs the query."""

    @classmethod
    def read(cls, folder: Folder) -> Owner:
        """The owner that a checkpoint names; one without names if it names none."""

        def parse(note: dict[str, Any]) -> Owner:
            owner = decode(cls, note, ignore_unknown=True)
            _require_texts(owner.source or None, "kind")
            decode(tuple[_TopicId, ...], (owner.source or {}).get("topic_ids", ()))
            _require_texts(owner.sink, "kind", "name")
            return owner

        return parse_note(folder, OWNER, parse) or cls()

    def sink_of(self, folder: Folder) -> Mapping[str, Any] | None:
        """The sink, if the note was made for this very checkpoint."""
        return self.sink if self.location == folder.address else None

    def to_dict(self) -> dict[str, Any]:
        """As the note holds it: what is not known is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def _require_texts(end: Mapping[str, Any] | None, *names: str) -> None:
    """Refuse a source or a sink without these, or with a path that is no text."""
    if end is not None:
        decode(dict[str, str], {name: end[name] for name in names} | {"path": end.get("path", "")})
