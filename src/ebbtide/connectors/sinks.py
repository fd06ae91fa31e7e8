"""Plan what a rewind does to each place that a query writes, and search for such places."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from shlex import quote

from ebbtide.checkpoint import Checkpoint
from ebbtide.checks import Check, CheckKind
from ebbtide.connections import KafkaConnection
from ebbtide.connectors.base import ReplayedQuery, SinkEvidence, SinkPlace, SinkPlan
from ebbtide.connectors.registry import all_connectors, connector_of
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.storage import Folder, open_folder


def list_sink_flags() -> str:
    """The options that name a sink, in words."""
    return " or ".join(c.sink.flag for c in all_connectors() if c.sink.flag)


def recognize_sink(description: str, qualify: Callable[[str], str] = str) -> SinkPlace | None:
    """Where a query writes, by what Spark's progress calls its sink; None if it is not known.

    `qualify` gives a path its scheme, as Spark resolves it.

    >>> recognize_sink("FileSink[/my data]").path, recognize_sink("com.acme.SftpFileSink[host]")
    ('/my data', None)
    >>> recognize_sink("org.apache.spark.sql.execution.streaming.ConsoleTable$@71fa").kind
    'console'
    """
    called, _, path = description.partition("[")
    name = re.split(r"[.$]", called.partition("@")[0].rstrip("$"))[
        -1
    ]  # a class, or an object of it
    for connector in all_connectors():
        if connector.sink.spark_name == name:
            url = open_folder(qualify(path.removesuffix("]"))).url if path else ""
            return SinkPlace(connector.kind, url or connector.label, url)
    return None


def plan_sinks(
    checkpoint: Checkpoint,
    batch: int,
    sinks: Sequence[SinkPlan],
    connection: KafkaConnection | None,
    known: Sequence[SinkPlace] = (),
) -> tuple[tuple[SinkPlan, ...], tuple[Check, ...]]:
    """What a rewind to a batch does to each sink of a query, and the checks that report it.

    `sinks` are places and remedies as asked for. `known` are the places to which the query wrote
    before: none of them may be left out.
    """
    query = ReplayedQuery(checkpoint, batch, connection=connection)
    pairs = [_plan_sink(sink.sink, replace(query, remedy=sink.remedy)) for sink in sinks]
    left_out = _check_left_out([sink.sink for sink in sinks], known, query)
    return tuple(plan for plan, _ in pairs), (*(check for _, check in pairs), *left_out)


def _plan_sink(place: SinkPlace, query: ReplayedQuery) -> tuple[SinkPlan, Check]:
    sink, remedy = connector_of(place.kind).sink, query.remedy
    if remedy is not None and not sink.can_restore:
        raise UsageError(
            f"--sink {remedy} is for Delta and file sinks, and this query writes to {place.name}.",
            "Leave it out, or name the table that it writes with --sink-table.",
        )
    if sink.can_restore and not place.path:
        return SinkPlan(place), CheckKind.SINK.refuse(
            f"{place.name} skips batches that it has seen, and where it lies was not noted",
            f"Name it with {list_sink_flags()}.",
        )
    return sink.plan(place, query)


def _check_left_out(
    places: Sequence[SinkPlace], known: Sequence[SinkPlace], query: ReplayedQuery
) -> Iterator[Check]:
    """Sinks of the query that were not named and would skip the batches, or hold them twice."""
    checkpoint = query.checkpoint
    sinks = {p.address: p for p in (*places, *known) if connector_of(p.kind).sink.flag}
    named = {p.address for p in places if connector_of(p.kind).sink.flag}
    left = [place for address, place in sinks.items() if address not in named]
    earlier = [connector_of(place.kind).sink.examine(place, checkpoint) for place in left]
    for place, evidence in zip(left, earlier, strict=True):
        if _is_unclear(place, evidence):
            yield CheckKind.SINK.refuse(
                f"{place.path} was not named: the query wrote there before, and its log does not "
                "show whether it would skip the batches",
                f"Add {connector_of(place.kind).sink.flag} {quote(place.path)}.",
            )
    others = [
        found
        for place in sinks.values()
        for found in connector_of(place.kind).sink.find_others(place, checkpoint)
        if found.sink.address not in sinks
    ]
    for found in dict.fromkeys(filter(None, (*earlier, *others))):
        if found.batch is None or found.batch < query.first:
            continue
        is_sure = found in earlier or found.match == SinkEvidence.CERTAIN
        judge = CheckKind.SINK.refuse if is_sure else CheckKind.SINK.warn
        flag = connector_of(found.sink.kind).sink.flag
        yield judge(
            f"{found.sink.path} was not named: {found.detail}",
            f"If the query writes there, add {flag} {quote(found.sink.path)}.",
        )


def _is_unclear(place: SinkPlace, evidence: SinkEvidence | None) -> bool:
    """Whether a sink has a log that cannot be read, or that may be another query's by now."""
    if evidence is not None:
        return evidence.batch is None
    sink = connector_of(place.kind).sink
    return not sink.names_query and open_folder(place.path).exists(sink.log or "")


def search_sinks(checkpoint: Checkpoint, directory: str) -> list[SinkEvidence]:
    """The tables and folders in a directory, at any depth, that show signs of a query.

    Those with the clearest evidence come first. A folder that cannot be listed is left out.
    """
    strength = (SinkEvidence.CERTAIN, SinkEvidence.LIKELY, SinkEvidence.POSSIBLE)
    root = open_folder(directory)
    if not root.exists(""):
        raise UsageError(f"There is no folder {directory}.", "Name another with --search.")
    found = [
        evidence
        for place in _walk(root)
        if (evidence := connector_of(place.kind).sink.examine(place, checkpoint)) is not None
    ]
    return sorted(found, key=lambda one: (strength.index(one.match), one.sink.path))


def _walk(root: Folder) -> Iterator[SinkPlace]:
    """The sinks in a folder, by the logs that they keep; nothing inside of one is looked at."""
    logs = {c.sink.log: c.kind for c in all_connectors() if c.sink.log}
    level, seen = [root], set[str]()
    while level:
        below: list[Folder] = []
        for folder, names in zip(level, root.map(_list_folders, level), strict=True):
            kinds = [logs[name] for name in names if name in logs]
            yield from (SinkPlace(kind, folder.url, folder.url) for kind in kinds)
            if kinds:
                continue
            inside = [folder.beside(f"{folder.url}/{n}") for n in names if n[0] not in "._"]
            new = {each.address: each for each in inside}  # a link may lead back
            below += [each for address, each in new.items() if address not in seen]
            seen |= new.keys()
        level = below


def _list_folders(folder: Folder) -> list[str]:
    try:
        return folder.folders()
    except CheckpointError:
        return []
