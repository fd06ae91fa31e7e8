"""Where a query writes: as its run noted it, as somebody named it once, or not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from shlex import quote

from ebbtide.checkpoint import Backup, Checkpoint, Owner, SinkChange, layout
from ebbtide.checks import Check, CheckKind
from ebbtide.connectors import SinkPlace, SinkPlan, base, connector_of, sinks
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.notes import decode, parse_note, write_note
from ebbtide.storage import Folder

_SKIP = "Delta and file sinks skip batches that they have seen, and lose new data with them"


@dataclass(frozen=True)
class KnownSinks:
    """The sinks of a checkpoint's query, as far as its notes tell."""

    places: tuple[SinkPlace, ...] = ()
    named: bool = False
    """Whether somebody named them for a rewind; otherwise the run noted its own."""
    origin: str | None = None
    """The checkpoint that the notes belong to, where that is another: this one is a copy."""
    origin_places: tuple[SinkPlace, ...] = ()
    """The sinks of that one."""
    undated: bool = False
    """Whether an older version of Ebbtide wrote the notes, so that this cannot be told."""

    @classmethod
    def read(cls, folder: Folder) -> KnownSinks:
        """What the notes of a checkpoint tell of its sinks.

        What was noted in another place does not count: a copy may write elsewhere.
        """
        owner = Owner.read(folder)
        run = [(owner.location, (SinkPlace.of_note(owner.sink),))] if owner.sink else []
        named = parse_note(
            folder,
            layout.SINKS,
            lambda note: decode(_NamedSinks, note),
            f"Delete it, and name the sink again with {sinks.list_sink_flags()}.",
        )
        notes = [*run, *([(named.location, named.sinks)] if named else [])]
        here = [places for location, places in notes if location == folder.address]
        if not here:
            origin, places = next(iter(notes), (None, ()))
            return cls((), False, origin, places, undated=bool(places) and origin is None)
        # a run that cannot tell where it writes, as with foreachBatch, leaves that to the user
        best = next((places for places in here if not _lack_place(places)), here[0])
        return cls(best, named=named is not None and best is named.sinks)

    def with_remedy(self, remedy: str | None) -> list[SinkPlan]:
        """Those places, with what is to become of their rows; refuse that of an unknown sink."""
        if not self.places and remedy is not None:
            why = self._why or "it is not known where the query writes"
            raise UsageError(
                f"--sink {remedy} needs a known sink, but {why}.",
                f"Add {sinks.list_sink_flags()}.",
            )
        return [SinkPlan(place, remedy) for place in self.places]

    def check_unknown(self, location: str) -> Check:
        """The check that stops a rewind whose sink is not known."""
        look = f"To look for it: ebbtide sinks {quote(location)} --search DIR"
        waive = "or use --sink none if it accepts the same batches again, as Kafka does"
        return CheckKind.SINK.refuse(
            f"{self._why or 'it is not known where the query writes'}. {_SKIP}",
            f"Name it with {sinks.list_sink_flags()}, {waive}. {look}",
        )

    @property
    def _why(self) -> str:
        """Why the sink is not known, where a note names one."""
        names = " and ".join(place.name for place in self.origin_places)
        if self.origin is not None:
            return (
                f"it is not known where the query writes: this checkpoint was copied or moved from "
                f"{self.origin}, which writes "
                f"to {names}"
            )
        if self.undated:
            return (
                "it is not known where the query writes: an older version of Ebbtide noted "
                f"{names}, and not for which checkpoint"
            )
        return ""

    def flags_for(self, places: tuple[SinkPlace, ...]) -> str:
        """The options with which a command names places; none if they are known."""
        return "" if places == self.places else format_sink_flags(places)

    def owns(self, folder: Folder, backup: Backup) -> bool:
        """Whether the sinks that a backup has changed are those of this very checkpoint."""
        if not backup.sinks or backup.location == folder.address:
            return True
        changed = (SinkPlace(change.kind, change.path, change.path) for change in backup.sinks)
        return {place.address for place in changed} <= {place.address for place in self.places}


@dataclass(frozen=True)
class _NamedSinks:
    """The note of what was named."""

    location: str
    sinks: tuple[SinkPlace, ...]


def _lack_place(places: Sequence[SinkPlace]) -> bool:
    return any(connector_of(place.kind).sink.lacks_place(place) for place in places)


def remember_sinks(folder: Folder, places: Sequence[SinkPlace]) -> None:
    """Note where the query writes, for the next rewind; a sink that was waived is not known."""
    if places and not _lack_place(places) and tuple(places) != KnownSinks.read(folder).places:
        note = {"location": folder.address, "sinks": [asdict(place) for place in places]}
        write_note(folder, layout.SINKS, note)


def check_own_sinks(folder: Folder, backup: Backup) -> Check | None:
    """Whether an undo would change a sink of another checkpoint; None if it changes none."""
    if not backup.sinks:
        return None
    if KnownSinks.read(folder).owns(folder, backup):
        return CheckKind.SINK.ok("it is this checkpoint's own")
    paths = " and ".join(change.path for change in backup.sinks)
    made = (
        f"was made in {backup.location}, from which this checkpoint was copied or moved"
        if backup.location
        else "does not say where it was made, so this checkpoint may be a copy"
    )
    return CheckKind.SINK.refuse(
        f"backup {backup.id} {made}: an undo would also change {paths}",
        f"To undo the rewind of the checkpoint alone, add --leave-sink. {_say_so(folder, backup)}",
    )


def require_own_place(folder: Folder, backup: Backup) -> None:
    """Refuse to go on with a sink in a copy that was made while its original was being changed."""
    if not KnownSinks.read(folder).owns(folder, backup):
        raise CheckpointError(
            f"{folder.url} was copied or moved from {backup.location or 'elsewhere'} while it was "
            "being changed, and to go on would change the sink of that one.",
            f"Finish it there, then make a new copy. {_say_so(folder, backup)}",
        )


def _say_so(folder: Folder, backup: Backup) -> str:
    command = f"ebbtide sinks {quote(folder.url)} {format_sink_flags(backup.sinks)}"
    return f"If it writes there now, name the sink first: {command}"


def format_sink_flags(places: Iterable[SinkPlace | SinkChange]) -> str:
    """The options that name places; a sink that was waived has none.

    >>> format_sink_flags([SinkPlace("delta", "visits", "/my tables/visits")])
    "--sink-table '/my tables/visits'"
    """
    flags = ((connector_of(place.kind).sink.flag, place.path) for place in places)
    return " ".join(f"{flag} {quote(path)}" if flag else "--sink none" for flag, path in flags)


def name_sinks(
    checkpoint: Checkpoint, tables: Sequence[str], files: str | None
) -> tuple[SinkPlace, ...]:
    """Note where a query writes, as somebody says; refuse a place that shows no sign of it."""
    named = {"--sink-table": tables, "--sink-files": (files,) if files else ()}
    if all(named.values()):
        raise UsageError("--sink-table and --sink-files exclude each other.", "Give one.")
    places = SinkPlace.named(named)
    for place in places:
        if connector_of(place.kind).sink.examine(place, checkpoint) is None:
            raise CheckpointError(
                f"{place.path} shows no sign of the query of {checkpoint.location}.",
                f"To look for its sink: ebbtide sinks {quote(checkpoint.location)} --search DIR",
            )
    remember_sinks(checkpoint.folder, places)
    return places


def list_known_sinks(checkpoint: Checkpoint) -> list[base.SinkEvidence]:
    """Where a query writes, as the notes of its checkpoint tell."""
    known = KnownSinks.read(checkpoint.folder)
    how = "named for this checkpoint" if known.named else "noted by its run"
    own = [base.SinkEvidence(place, base.SinkEvidence.CERTAIN, how) for place in known.places]
    return own + [
        base.SinkEvidence(
            place, base.SinkEvidence.POSSIBLE, f"noted for {known.origin or 'no place'}"
        )
        for place in known.origin_places
    ]
