"""What an archive holds, from its log alone; and which tables are no archive of the pipeline."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from ebbtide.archive.facts import ArchiveCost, find_archive, read_archive
from ebbtide.config import Settings
from ebbtide.errors import ArchiveError
from ebbtide.pipeline import Files, Kafka
from tests.unit.archive.tables import PIPELINE, SCHEMA, append, at, checkpoint, create, plan_batches


@pytest.fixture
def archive(settings: Settings) -> Path:
    """Three batches: two partitions, three hours, one record without event time."""
    path = create(settings)
    append(settings, 0, (0, 0, "07:00"), (0, 1, "07:59"), (1, 0, "08:30"))
    append(settings, 1, (1, 1, None), (0, 2, "07:30"))
    append(settings, 2, (1, 2, "10:00"))
    ends = [{0: 2, 1: 1}, {0: 3, 1: 2}, {0: 3, 1: 3}]
    plan_batches(checkpoint(settings), ends, committed=3)
    return path


@pytest.mark.usefixtures("archive")
def test_what_it_holds(settings: Settings) -> None:
    found = read_archive(PIPELINE, settings)
    assert (found.version, found.topic, found.event_time, found.timezone) == (
        *(3, "visits", "event_time", "UTC"),
    )
    assert (found.records, found.unreadable, found.files) == (6, 1, 5)
    assert found.bytes == sum(file.bytes for file in found.contents) > 0
    assert (found.earliest, found.latest) == (at("07:00"), at("10:00"))
    assert (found.batch, found.offsets) == (2, {0: 3, 1: 3})


@pytest.mark.parametrize(
    ("start", "end", "files", "records"),
    [
        ("07:00", "08:00", 2, 3),
        ("07:45", "08:00", 1, 2),  # one of the hour's two files ends before
        ("08:00", "08:30", 0, 0),  # half-open: the record at 08:30 is not in it
        ("08:00", "08:31", 1, 1),
        ("07:59", "10:01", 3, 4),
        ("11:00", "12:00", 0, 0),
    ],
)
@pytest.mark.usefixtures("archive")
def test_cost_follows_the_range(
    settings: Settings, start: str, end: str, files: int, records: int
) -> None:
    found = read_archive(PIPELINE, settings)
    cost = found.cost(at(start), at(end))
    assert (cost.files, cost.records) == (files, records)
    assert (cost.bytes > 0) == (files > 0)
    assert cost.bytes < found.bytes


@pytest.mark.usefixtures("archive")
def test_an_older_version_is_read_as_it_was(settings: Settings) -> None:
    found = read_archive(PIPELINE, settings, version=1)
    assert (found.version, found.records, found.unreadable) == (1, 3, 0)
    assert (found.batch, found.offsets) == (0, {0: 2, 1: 1})
    with pytest.raises(ArchiveError, match=r"Version 9 .* the newest is 3"):
        read_archive(PIPELINE, settings, version=9)


@pytest.mark.usefixtures("archive")
def test_offsets_without_the_checkpoint_come_from_the_records(settings: Settings) -> None:
    (checkpoint(settings) / "offsets" / "2").unlink()
    assert read_archive(PIPELINE, settings).offsets == {0: 3, 1: 3}
    shutil.rmtree(checkpoint(settings))
    found = read_archive(PIPELINE, settings, version=2)
    assert (found.batch, found.offsets) == (None, {0: 3, 1: 2})


@pytest.mark.usefixtures("archive")
def test_a_checkpoint_that_is_not_whole_does_not_matter(settings: Settings) -> None:
    (checkpoint(settings) / "offsets" / "2").write_text("v1\n")
    assert read_archive(PIPELINE, settings).offsets == {0: 3, 1: 3}


def test_an_empty_archive(settings: Settings) -> None:
    assert find_archive(PIPELINE, settings) is None
    create(settings)
    found = find_archive(PIPELINE, settings)
    assert found is not None
    assert (found.records, found.files, found.earliest, found.offsets) == (0, 0, None, {})
    assert found.cost(at("07:00"), at("08:00")) == ArchiveCost(0, 0, 0)


def test_no_table(settings: Settings) -> None:
    with pytest.raises(ArchiveError, match=r"There is no archive.*ebbtide archive visits-counter"):
        read_archive(PIPELINE, settings)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"archive": None}, "visits-counter has no archive. Give it one"),
        ({"source": Files("in", schema="event_time TIMESTAMP")}, "only a Kafka topic is archived"),
        ({"source": Kafka("clicks", schema="t TIMESTAMP")}, "with topic visits; .* topic clicks"),
        ({"event_time": "at"}, "with event time event_time; .* has event time at"),
    ],
)
@pytest.mark.usefixtures("archive")
def test_another_pipeline_is_refused(settings: Settings, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ArchiveError, match=says):
        read_archive(replace(PIPELINE, **change), settings)


@pytest.mark.usefixtures("archive")
def test_another_zone_is_refused(settings: Settings) -> None:
    with pytest.raises(ArchiveError, match=r"in UTC, and Europe/Warsaw is set. Add --timezone UTC"):
        read_archive(PIPELINE, replace(settings, timezone="Europe/Warsaw"))


@pytest.mark.parametrize(
    ("marks", "says"),
    [
        ({"ebbtide.layout": None}, "is a Delta table, but no archive of Ebbtide"),
        ({"ebbtide.layout": "2"}, "has layout 2; this Ebbtide knows layout 1"),
    ],
)
def test_another_table_is_refused(
    settings: Settings, marks: dict[str, str | None], says: str
) -> None:
    create(settings, marks)
    with pytest.raises(ArchiveError, match=says):
        read_archive(PIPELINE, settings)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (SCHEMA.remove(6), "has column value as none; an archive has it as binary"),
        (SCHEMA.append(pa.field("n", pa.int32())), "column n as integer; .* as none"),
        (SCHEMA.set(3, pa.field("offset", pa.int32())), "column offset as integer; .* as long"),
        (SCHEMA.remove(9), "column event_hour as none"),
    ],
)
def test_other_columns_are_refused(settings: Settings, schema: pa.Schema, says: str) -> None:
    create(settings, {"delta.dataSkippingStatsColumns": None}, schema)
    with pytest.raises(ArchiveError, match=says):
        read_archive(PIPELINE, settings)
