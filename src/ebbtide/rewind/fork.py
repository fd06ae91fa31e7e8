"""Make a second checkpoint that begins with a batch of the first.

Steps: **1** read and check the original, which is only ever read and may be running; **2** list
what the batch needs, or only its position in the sources; **3** take the new folder, so that no
other fork goes there, and put a barrier into it: a log entry that Spark refuses to read; **4**
state, with paths of its own inside; **5** sources and logs; **6** a query id, our notes, and what
the new sink needs; **7** see that the original was not rewound meanwhile, and remove the barrier. A
fork that failed is removed; one that was killed is made again.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from shlex import quote
from typing import Any

from ebbtide.checkpoint import (
    Checkpoint,
    Journal,
    Owner,
    Timeline,
    layout,
    log_files,
    read_checkpoint,
    read_logs,
)
from ebbtide.checks import Check
from ebbtide.connectors import SinkPlace, connector_of
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.notes import read_note, write_note, write_text
from ebbtide.processes import whoami
from ebbtide.rewind import checks
from ebbtide.rewind.fresh_start import FreshStart, find_fresh_start
from ebbtide.rewind.holders import FILES
from ebbtide.rewind.journal import write_timeline
from ebbtide.rewind.lease import FORK, Claim, LeaseLostError, hold_lease, remove_unused
from ebbtide.rewind.plan import list_removals
from ebbtide.rewind.sinks import remember_sinks
from ebbtide.storage import NOTES, Folder, WritableFolder, open_folder, open_writable
from ebbtide.times import in_utc

_DEAD_LETTERS = "dead-letters.json"
_INTERRUPTED = f"{layout.BARRIER}A fork "
_SCHEMA_PATH = re.compile(r'"([^"]*)(/state/\d+/_stateSchema/[^"]*)"')


@dataclass(frozen=True)
class Fork:
    """A checkpoint that begins with a batch of another."""

    checkpoint: str
    origin: str
    origin_query_id: str
    query_id: str
    name: str
    """Of its part of the timeline."""
    first_batch: int
    mode: str
    made_at: str
    made_by: str
    pipeline: str | None
    sink: Mapping[str, Any] | None
    bytes: Mapping[str, int] = field(default_factory=dict, repr=False)
    """The files that the two have in common, with their sizes."""
    at_batch: int = 0
    """The batch of the original with which it begins."""
    offsets_only: bool = False
    """Whether it begins there with batch 0 and without state."""
    is_planned: bool = False
    """Whether that batch was planned then, but not committed: its output may be in the sink."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values, without the list of files."""
        sizes = {"files": len(self.bytes), "bytes": sum(self.bytes.values())}
        return {k: v for k, v in vars(self).items() if k != "bytes"} | sizes


def fork_checkpoint(
    location: str,
    new_location: str,
    batch: int | None,
    *,
    replan: bool = False,
    offsets_only: bool = False,
    sink: SinkPlace | None = None,
    assume_stopped: bool = False,
    folder: WritableFolder | None = None,
    on_file: Callable[[int, int], None] = lambda _done, _all: None,
) -> Fork:
    """Make a second checkpoint that begins with a batch of the first, and return what was made.

    The first batch keeps its recorded offsets, watermark and time unless `replan` is given, or
    unless it is the next one, which has not been planned yet. With `offsets_only` it begins where
    the batch does (by default the next one), but as batch 0, without state. `sink` is the new place
    to which the fork will write, if it has to be prepared: a pipeline's own is prepared when it
    runs.
    """
    # 1
    before = _last_change(open_folder(location))
    checkpoint, new = read_checkpoint(location), folder or open_writable(new_location)
    checkpoint.require_finished()
    _require_free(new, checkpoint)
    if sink and sink.address[1] in (new.address, checkpoint.folder.address):
        raise UsageError(f"{sink.path} is a checkpoint, not a sink.", "Name another folder.")
    if offsets_only:
        fresh = find_fresh_start(checkpoint, batch)
        batch, replan = fresh.batch, True
        sizes = {path: len(text.encode()) for path, text in fresh.files.items()}
    elif batch is None:
        raise UsageError("A fork with state needs a batch.", "Add --at-batch N or --offsets-only.")
    else:
        fresh, replan = None, replan or _is_next(checkpoint, batch)
        _require_allowed(checkpoint, batch, replan=replan)
        # 2
        with _plain_errors(checkpoint, new):
            paths = list_needed(checkpoint, batch, replan=replan)
            sizes = {path: checkpoint.size(path) for path in paths}
    now, owner = datetime.now(timezone.utc), Owner.read(checkpoint.folder)
    fork = Fork(
        checkpoint=new.url,
        origin=checkpoint.location,
        origin_query_id=checkpoint.logs.query_id,
        query_id=str(uuid.uuid4()),
        name=f"fork-{now:%Y%m%dT%H%M%S.%fZ}",
        first_batch=0 if fresh else batch,
        mode=layout.REPLAN if replan else layout.EXACT,
        made_at=in_utc(now),
        made_by=whoami(),
        pipeline=owner.pipeline,
        sink=owner.sink,
        bytes=sizes,
        at_batch=batch,
        offsets_only=offsets_only,
        is_planned=fresh is not None and fresh.is_planned,
    )
    # 3 to 7
    try:
        with (
            _plain_errors(checkpoint, new),
            hold_lease(new, FORK, assume_stopped=assume_stopped) as claimed,
        ):
            _require_free(new, checkpoint)  # another one may have been faster
            try:
                _clear(claimed.writable)
                _make(checkpoint, claimed, fork, fresh, sink, on_file)
                _require_unchanged(checkpoint, before)
                # 7
                claimed.check()
                _lift_barrier(claimed.writable, fork)
            except LeaseLostError:
                raise
            except BaseException:
                _clear(claimed.writable)
                raise
    except BaseException:
        remove_unused(new)
        raise
    return fork


@contextmanager
def _plain_errors(checkpoint: Checkpoint, new: Folder) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{checkpoint.location} has lost a file while it was copied: "
            f"{error.filename or error}. Its query is running, and Spark has cleaned up.",
            "Nothing is left behind. Choose a later batch, or stop the query first.",
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"{new.url} cannot be written: {error.strerror or error}. Nothing is left behind.",
            "Make room, fix the permissions or name another folder.",
        ) from None


def begin_sink(folder: WritableFolder, place: SinkPlace) -> None:
    """Prepare a place to which a query has not written yet for its next batch."""
    is_new = not folder.exists("metadata")
    logs = log_files.Logs(folder.url, "", (), "") if is_new else read_logs(folder)
    owner = Owner.read(folder)  # one of an earlier version does not say where the checkpoint lies
    own = SinkPlace.of_note(owner.sink).address if owner.sink else None
    is_own = owner.location in (None, folder.address) and own == place.address
    connector_of(place.kind).sink.begin(folder, place, logs, is_own=is_own)


def _is_next(checkpoint: Checkpoint, batch: int) -> bool:
    """Whether a batch is the one that has not been planned yet; refuse one that is not there."""
    logs = checkpoint.logs
    if batch in logs.by_id:
        return False
    latest = logs.latest_committed
    if latest is not None and latest == logs.batches[-1] and batch == latest.id + 1:
        return True
    batches = f"{logs.batches[0].id} to {logs.batches[-1].id}" if logs.batches else "none"
    raise CheckpointError(
        f"{checkpoint.location} has no batch {batch}.",
        f"It has {batches}. See which can run again: ebbtide inspect {quote(checkpoint.location)}",
    )


def _require_free(new: WritableFolder, checkpoint: Checkpoint) -> None:
    """Refuse a folder with anything in it, except for what a killed fork left there."""
    if _place(new).startswith(_place(checkpoint.folder)):
        raise UsageError(
            f"{new.url} lies inside the checkpoint itself.", "Name a folder outside of it."
        )
    names = [name for name in new.names() if name != NOTES]
    if set(new.names(NOTES)) - FILES:
        names.append(NOTES)
    logs = new.read_all(f"offsets/{id_}" for id_ in new.ids("offsets"))
    if not names or any(text.startswith(_INTERRUPTED) for text in logs.values()):
        return
    raise CheckpointError(
        f"{new.url} is not empty: it holds {', '.join(names[:3])}.",
        "Name a folder that does not exist yet.",
    )


def _clear(new: WritableFolder) -> None:
    """Remove all but our lease; the barrier is the last of the log's entries, and goes last."""
    for name in new.names():
        if name not in ("offsets", NOTES):
            new.remove_tree(name)
    for name in new.names(NOTES):
        if name not in FILES:
            new.remove_tree(f"{NOTES}/{name}")
    new.sync()
    for id_ in new.ids("offsets"):
        new.remove(f"offsets/{id_}")
    new.remove_tree("offsets")


def _place(folder: Folder) -> str:
    """Where a folder really lies: a link may lead elsewhere, and a URL has several spellings."""
    return f"{folder.address}/"


def check_trigger(made: Fork) -> Check | None:
    """Whether Spark will repeat the first batch of a fork as it was planned."""
    if made.offsets_only:
        return None
    replan = made.mode == layout.REPLAN
    return checks.check_trigger(read_checkpoint(made.origin), made.first_batch, replan=replan)


def _require_allowed(checkpoint: Checkpoint, batch: int, *, replan: bool) -> None:
    advice = f"See which batches can run again: ebbtide inspect {quote(checkpoint.location)}"
    for check in (
        checks.check_logs(checkpoint, batch, replan=replan),
        checks.check_state(checkpoint, batch, replan=replan),
        checks.check_unknown(checkpoint),
    ):
        what = f"{checkpoint.location} cannot be forked at batch {batch}"
        checks.require(replace(check, next=advice), what)


def list_needed(checkpoint: Checkpoint, batch: int, *, replan: bool) -> list[str]:
    """What a query needs to begin with a batch, in the order in which it is copied.

    The chain of every store, what Spark noted about operators and schemas, the sources, and those
    log entries that Spark reads at a start.
    """
    tree = checkpoint.tree
    mains = checkpoint.files_needed(batch)
    gone = set(list_removals(checkpoint, batch, replan=replan))
    mains += [
        f"{directory}/{name}"
        for directory, listing in tree.items()
        if directory.startswith("sources/") or (batch > 0 and _describes_state(directory))
        for name in listing.names
        if layout.main_file(name) == name and not layout.is_temporary(name)
        if f"{directory}/{name}" not in gone
    ]
    before = checkpoint.before(batch)
    earlier = checkpoint.before(before.id) if before else None
    done = [each.id for each in (earlier, before) if each]
    mains += [f"commits/{id_}" for id_ in done if checkpoint.logs.by_id[id_].committed]
    mains += [f"offsets/{id_}" for id_ in (done if replan else [*done, batch])]
    return [path for main in dict.fromkeys(mains) for path in checkpoint.with_sidecars(main)]


def _describes_state(directory: str) -> bool:
    """Whether Spark keeps an operator's metadata or a schema there."""
    parts = directory.split("/")
    return parts[0] == "state" and ("_metadata" in parts or "_stateSchema" in parts)


def _make(
    checkpoint: Checkpoint,
    claimed: Claim,
    fork: Fork,
    fresh: FreshStart | None,
    sink: SinkPlace | None,
    on_file: Callable[[int, int], None],
) -> None:
    origin, new = checkpoint.folder, claimed.writable
    # 3
    new.write(
        _barrier(fork),
        f"{_INTERRUPTED}of {fork.origin} was interrupted. Make it again: {_command(fork, sink)}\n",
    )
    new.sync()
    # 4, 5
    done = iter(range(1, len(fork.bytes) + 1))

    def copy(path: str) -> None:
        if fresh:
            new.write(path, fresh.files[path])
        else:
            _copy(origin, new, path)
        on_file(next(done), len(fork.bytes))

    new.map(copy, fork.bytes)
    # 6
    claimed.check()
    new.write("metadata", json.dumps({"id": fork.query_id}))
    # what is in the sink is the original's: a rewind of the fork must not take it away
    owner = replace(Owner.read(origin), sink=None, location=None)
    if fresh:  # the source's note counts the batches of the original
        owner = replace(owner, source=None)
    if note := owner.to_dict():
        write_note(new, layout.OWNER, note)
    if (letters := read_note(origin, _DEAD_LETTERS)) is not None:
        write_note(new, _DEAD_LETTERS, letters)
    timeline = Timeline.read(origin).branch(fork.first_batch, fork.mode, fork.name)
    write_timeline(new, timeline)
    write_note(new, layout.FORK, fork.to_dict())
    line = {"at": fork.made_at, "by": fork.made_by, "action": "fork"}
    write_text(new, layout.AUDIT, json.dumps(line | fork.to_dict() | {"result": "done"}) + "\n")
    if sink and not connector_of(sink.kind).sink.begin(new, sink, read_logs(new)):
        raise CheckpointError(
            f"{sink.path} holds the log of another query.", "Name a folder that does not exist yet."
        )
    remember_sinks(new, [sink] if sink else [])


def _barrier(fork: Fork) -> str:
    return f"offsets/{fork.first_batch + 1}"


def _lift_barrier(new: WritableFolder, fork: Fork) -> None:
    new.sync()
    new.remove(_barrier(fork))


def _last_change(origin: Folder) -> tuple[str, ...]:
    """The last rewind or undo of a checkpoint: its backup, and one that is under way."""
    journal = Journal.read(origin)
    return (max(origin.names(layout.BACKUPS), default=""), journal.backup if journal else "")


def _require_unchanged(checkpoint: Checkpoint, before: tuple[str, ...]) -> None:
    """Refuse a copy of files of which some may be of one timeline and some of another."""
    if _last_change(checkpoint.folder) != before:
        raise CheckpointError(
            f"{checkpoint.location} was rewound, undone or pruned while it was copied.",
            "Nothing is left behind. Fork it again when that is done.",
        )


def _command(fork: Fork, sink: SinkPlace | None) -> str:
    """The line that makes the fork again."""
    line = f"ebbtide fork {quote(fork.origin)} {quote(fork.checkpoint)}"
    how = "--offsets-only" if fork.offsets_only else "--replan"
    line += f" --at-batch {fork.at_batch}{f' {how}' if fork.mode == layout.REPLAN else ''}"
    flag = connector_of(sink.kind).sink.flag if sink else None
    return f"{line} {flag} {quote(sink.path)}" if sink and flag else line


def _copy(origin: Folder, new: WritableFolder, path: str) -> None:
    """One file; what names the checkpoint's own path is written again, without its checksum."""
    directory, _, name = path.rpartition("/")
    if not directory.endswith("/_metadata/v2"):
        new.link(path, path, of=origin)
    elif layout.main_file(name) == name:
        if (text := origin.read(path)) is None:
            raise FileNotFoundError(path)
        new.write(path, with_own_paths(text, origin, new))


def with_own_paths(text: str, origin: Folder, new: Folder) -> str:
    """What Spark noted about an operator, its schemas looked for in another checkpoint.

    >>> text = '{"stateSchemaFilePaths":["file:/a/old/state/0/_stateSchema/default/0_f1"]}'
    >>> with_own_paths(text, open_writable("/a/old"), open_writable("/b/new"))
    '{"stateSchemaFilePaths":["file:/b/new/state/0/_stateSchema/default/0_f1"]}'
    """

    def replaced(match: re.Match[str]) -> str:
        before = match[1]
        if origin.filesystem == new.filesystem and before.endswith(origin.root):
            place = before.removesuffix(origin.root) + new.root
        else:  # it was moved or reached by another name
            place = f"file:{new.root}" if new.local else new.url
        return f'"{json.dumps(place, ensure_ascii=False)[1:-1]}{match[2]}"'

    return _SCHEMA_PATH.sub(replaced, text)
