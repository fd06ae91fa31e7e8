"""Both advice back: which are open, what they take, which one is recommended, and why."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ebbtide.advice import Advice, compare_options
from ebbtide.advice.affected import AffectedResults
from ebbtide.advice.archived_records import (
    ArchivedRecords,
    RecordFilter,
    WatermarkStart,
    find_records,
)
from ebbtide.advice.compare import recommend
from ebbtide.advice.inputs import why_no_range
from ebbtide.advice.options import RecoveryOption
from ebbtide.advice.reprocess_option import split
from ebbtide.archive.facts import read_archive
from ebbtide.checkpoint import read_checkpoint
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.errors import CheckpointError, EbbtideError
from ebbtide.history.store import write_entry
from ebbtide.notes import write_note
from ebbtide.pipeline import Console, Delta, Files, Kafka
from ebbtide.reprocessing.ranges import EventTimeRange
from ebbtide.rewind.holders import RUN
from ebbtide.rewind.lease import hold_lease
from ebbtide.runtime.ownership import claim
from ebbtide.storage import open_folder, open_writable
from tests.compat.kept import FIXTURES, unpack
from tests.outputs import write_batches, write_files
from tests.trees import Shape
from tests.unit.advice.places import (
    EPOCH,
    Row,
    make_archive,
    make_checkpoint,
    minute,
    pipeline,
    planned,
    rows_of,
)
from tests.unit.history.test_history import entry

STATEFUL = Shape(layout="rocksdb", batches=10, operator_metadata="v1")
STATELESS = Shape(batches=10)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


def test_state_with_open_windows_is_repaired_by_a_rewind_only(settings: Settings) -> None:
    folder = make_checkpoint(settings, STATEFUL)
    make_archive(settings, rows_of(range(10)))
    advice = compare_options(pipeline(), settings, planned(5))
    assert (advice.first_batch, advice.recommended) == (5, "rewind")
    assert "Only a rewind repairs the state" in advice.reason
    assert "1970-01-01T00:09:00.000Z" in advice.reason  # the watermark of the last batch
    assert (advice.rewind.batches, advice.rewind.records) == (5, 15)
    state = [path for path in (folder / "state").rglob("*") if path.is_file()]
    assert 0 < (advice.rewind.bytes or 0) < sum(path.stat().st_size for path in state)
    assert "batches 5 to 9 again, under the same keys" in advice.rewind.sink
    assert advice.rewind.stops_stream
    assert not advice.reprocess.stops_stream
    # no run has noted its sink in this checkpoint
    command = f"ebbtide rewind {folder} --to-batch 5 --sink none --assume-stopped"
    assert advice.rewind.command == command
    assert advice.rewind.steps[-1].command == "ebbtide run visits-counter"
    assert advice.span == EventTimeRange(minute(15), minute(19 + 1 / 60))
    assert advice.span_origin == "the records that the batches to replay read"
    assert (advice.reprocess.records, advice.reprocess.files) == (27, 1)  # at most: one hour's file


def test_without_state_the_stream_runs_on(settings: Settings) -> None:
    make_checkpoint(settings, STATELESS)
    make_archive(settings, rows_of(range(10)))
    advice = compare_options(pipeline(), settings, planned(5), reference="jobs.py:visits")
    assert advice.recommended == "reprocess"
    assert "keeps no state" in advice.reason
    assert advice.reprocess.command == (
        "ebbtide reprocess jobs.py:visits --event-time-start 1970-01-01T00:15:00Z "
        "--event-time-end 1970-01-01T00:19:01Z"
    )
    assert advice.reprocess.steps[-1].command == advice.reprocess.command
    assert advice.caveats == ()


def test_what_is_closed_is_reprocessed_beside_the_stream(settings: Settings) -> None:
    """The watermark has passed everything that was read since: state and open windows are right."""
    make_checkpoint(settings, STATEFUL)
    make_archive(settings, rows_of(range(10), ahead=-1.5))
    advice = compare_options(pipeline(), settings, planned(5))
    assert advice.recommended == "reprocess"
    assert "its state holds nothing wrong" in advice.reason
    assert advice.reprocess.state == "is not changed: it holds nothing wrong"
    assert any("arrived behind the watermark" in caveat for caveat in advice.caveats)


def test_open_windows_are_reprocessed_once_they_are_closed(settings: Settings) -> None:
    """What is final now, and the rest when the stream is done with it."""
    make_checkpoint(settings, STATEFUL)
    early = [Row(0, 4, minute(3)), Row(1, 8, minute(12))]
    make_archive(settings, [*rows_of(range(5)), *early, *rows_of(range(6, 10))])
    # a rewind is closed, because the sink cannot go back
    write_files(settings.home / "out", range(10))
    (settings.home / "out/_spark_metadata/3").unlink()
    files = compare_options(pipeline(Files(str(settings.home / "out"))), settings, planned(5))
    assert files.recommended == "reprocess"
    assert "its log cannot go back" in str(files.rewind.problem)
    assert "out-reprocessed" in files.reprocess.sink
    now, later = (step.command for step in files.reprocess.steps[-2:])
    assert now.endswith("T00:03:00Z --event-time-end 1970-01-01T00:09:00Z")
    assert later.endswith(
        "--event-time-start 1970-01-01T00:09:00Z --event-time-end 1970-01-01T00:19:01Z"
    )
    assert "will write wrong results" in files.caveats[-1]

    write_batches(Path(settings.table("counts")), range(10))
    write_batches(Path(settings.table("counts")), (0,), None)
    delta = compare_options(pipeline(Delta("counts")), settings, planned(5))
    assert "Others have changed the table since" in str(delta.rewind.problem)
    assert delta.reprocess.sink == "the range of table counts is replaced in one commit"
    # no whole hour of it is final, so all of it waits
    (only,) = [step for step in delta.reprocess.steps if "reprocess" in step.command]
    assert "Wait until the stream's watermark has passed" in only.what


def test_a_range_is_split_at_the_watermark() -> None:
    span = EventTimeRange(minute(30), minute(200))
    assert split(span, None) == (span, None)
    assert split(span, minute(200)) == (span, None)
    assert split(span, minute(30)) == (None, span)
    cut = minute(150.5)
    assert split(span, cut) == (EventTimeRange(minute(30), cut), EventTimeRange(cut, minute(200)))
    hour = minute(120)
    assert split(span, cut, whole_hours=True) == (
        EventTimeRange(minute(30), hour),
        EventTimeRange(hour, minute(200)),
    )
    assert split(span, minute(59), whole_hours=True) == (None, span)


def test_sink_effects_are_predicted(settings: Settings) -> None:
    make_checkpoint(settings, STATELESS)
    make_archive(settings, rows_of(range(10)))
    console = compare_options(pipeline(Console()), settings, planned(9))
    assert console.rewind.sink == "the console shows the output of batch 9 again"
    keyless = compare_options(pipeline(Kafka("out")), settings, planned(5))
    assert "without keys" in keyless.rewind.sink
    assert "without keys" in keyless.reprocess.sink


def test_a_table_or_files_go_back_with_a_rewind(settings: Settings) -> None:
    make_checkpoint(settings, STATEFUL)
    make_archive(settings, rows_of(range(10)))
    write_batches(Path(settings.table("counts")), range(10))
    delta = compare_options(pipeline(Delta("counts")), settings, planned(5)).rewind
    table = settings.table("counts")
    assert f"--to-batch 5 --sink restore --sink-table {table}" in delta.command
    assert "counts goes back from version 9 to version 4" in delta.sink
    write_files(settings.home / "out", range(10))
    files = compare_options(
        pipeline(Files(str(settings.home / "out"))), settings, planned(5)
    ).rewind
    assert f"--to-batch 5 --sink-files {settings.home / 'out'}" in files.command
    assert "would skip batches 5 to 9, so its log goes back, too" in files.sink


@pytest.mark.parametrize(
    ("archive", "said"), [(None, "has no archive"), ("visits", "no archive of")]
)
def test_without_an_archive_a_rewind_is_left(
    settings: Settings, archive: str | None, said: str
) -> None:
    make_checkpoint(settings, STATEFUL)
    advice = compare_options(pipeline(archive=archive), settings, planned(5))
    assert advice.recommended == "rewind"
    assert said in str(advice.reprocess.problem)
    assert advice.reprocess.remedy
    assert advice.span is None
    assert said in advice.reason


def test_what_is_not_archived_is_rewound(settings: Settings) -> None:
    make_checkpoint(settings, STATELESS)
    make_archive(settings, rows_of(range(5)))
    advice = compare_options(pipeline(), settings, planned(6))
    assert advice.recommended == "rewind"
    assert "None of the 12 records" in str(advice.reprocess.problem)
    assert advice.reprocess.remedy == "Wait until the archive has caught up."


def test_an_archive_that_is_behind_is_brought_up_to_date_first(settings: Settings) -> None:
    make_checkpoint(settings, STATELESS)
    make_archive(settings, rows_of(range(8)))
    advice = compare_options(pipeline(), settings, planned(6))
    assert advice.recommended == "reprocess"
    assert "6 records behind the stream" in advice.reprocess.retention
    assert [step.command for step in advice.reprocess.steps][-2] == (
        "ebbtide archive visits-counter --available-now"
    )


def test_an_archive_that_is_behind_and_runs_is_waited_for(settings: Settings) -> None:
    make_checkpoint(settings, STATELESS)
    place = settings.home / "archive-checkpoint"
    make_archive(settings, rows_of(range(8)), str(place))
    with hold_lease(open_writable(str(place)), RUN):
        advice = compare_options(pipeline(), settings, planned(6))
    step = advice.reprocess.steps[-2]
    assert "wait until it has caught up" in step.what
    assert step.command == "ebbtide archive visits-counter --status"


def test_an_archive_that_began_later_is_not_recommended(settings: Settings) -> None:
    make_checkpoint(settings, STATELESS)
    make_archive(settings, rows_of(range(7, 10)))
    advice = compare_options(pipeline(), settings, planned(5))
    assert advice.recommended == "rewind"
    assert advice.reason.startswith("The archive lacks 6 of the records")
    assert any("6 records" in remark for remark in advice.reprocess.remarks)


def test_gaps_of_the_topic_itself_are_no_loss(settings: Settings) -> None:
    """Transactions leave offsets without a record; the archive holds what is before them."""
    make_checkpoint(settings, STATELESS)
    whole = rows_of(range(10))
    make_archive(settings, [row for row in whole if (row.partition, row.offset) != (0, 4)])
    assert compare_options(pipeline(), settings, planned(5)).recommended == "reprocess"


def test_windows_that_an_archive_cuts_are_rewound(settings: Settings) -> None:
    """It holds all that is wrong and nothing from before: whole windows cannot be counted."""
    make_checkpoint(settings, STATEFUL)
    make_archive(settings, rows_of(range(5, 10), ahead=-1.5))
    advice = compare_options(pipeline(), settings, planned(5))
    assert advice.recommended == "rewind"
    assert "started after the stream" in advice.reason


def test_batches_that_are_gone_leave_the_archive(settings: Settings) -> None:
    """Records that reached Kafka since then tell the event times."""
    make_checkpoint(settings, replace(STATELESS, first=6, batches=4))
    make_archive(settings, rows_of(range(10), ahead=100))
    advice = compare_options(pipeline(), settings, planned(3))
    assert advice.recommended == "reprocess"
    assert advice.first_batch is None
    assert "are gone: the oldest left, 6" in str(advice.rewind.problem)
    assert advice.rewind.remedy == "The oldest batch that can run again is 7."
    assert advice.span == EventTimeRange(minute(103), minute(109 + 1 / 60))
    assert "reached Kafka since then" in advice.span_origin


def test_without_a_checkpoint_the_archive_is_left(settings: Settings) -> None:
    make_archive(settings, rows_of(range(10), ahead=100))
    advice = compare_options(pipeline(), settings, planned(3))
    assert advice.recommended == "reprocess"
    assert "is not a checkpoint" in str(advice.rewind.problem)
    assert advice.span == EventTimeRange(minute(103), minute(109 + 1 / 60))


def test_a_moment_without_archived_records_is_taken_as_event_time(settings: Settings) -> None:
    rows = [replace(row, kafka_time=EPOCH) for row in rows_of(range(10), ahead=100)]
    make_archive(settings, rows)
    advice = compare_options(pipeline(), settings, minute(105))
    assert advice.span == EventTimeRange(minute(105), minute(109 + 1 / 60))
    assert "the given time as an event time" in advice.span_origin
    late = compare_options(pipeline(), settings, minute(200))
    assert not late.possible
    assert "holds no record from 1970-01-01T03:20:00.000Z on" in str(late.reprocess.problem)
    assert late.recommended is None
    assert str(late.rewind.problem) in late.reason


def test_another_pipelines_checkpoint_is_refused(settings: Settings) -> None:
    folder = make_checkpoint(settings, STATELESS)
    write_note(open_folder(str(folder)), "pipeline.json", {"pipeline": "other", "sink": None})
    advice = compare_options(pipeline(archive=None), settings, planned(3))
    assert "is the checkpoint of pipeline other" in str(advice.rewind.problem)
    assert not advice.possible


def test_nothing_can_be_wrong_since_after_the_last_batch(settings: Settings) -> None:
    make_checkpoint(settings, STATELESS)
    with pytest.raises(CheckpointError, match=r"the last, 9, .* No result can be wrong"):
        compare_options(pipeline(), settings, minute(5))


def test_batches_without_records_need_no_reprocess(settings: Settings) -> None:
    folder = make_checkpoint(settings, STATELESS)
    entry = (folder / "offsets/9").read_text().replace('"0": 9, "1": 18', '"0": 8, "1": 16')
    (folder / "offsets/9").write_text(entry)
    make_archive(settings, rows_of(range(9)))
    advice = compare_options(pipeline(), settings, planned(9))
    assert advice.reprocess.problem == "The batches since then read no records."
    assert advice.recommended == "rewind"


def test_records_without_event_time_cannot_be_reprocessed(settings: Settings) -> None:
    make_checkpoint(settings, STATELESS)
    broken = [replace(row, event_time=None) for row in rows_of(range(8, 10))]
    make_archive(settings, [*rows_of(range(8)), *broken])
    advice = compare_options(pipeline(), settings, planned(8))
    assert "has an event time" in str(advice.reprocess.problem)


def test_event_time_is_found_in_the_archive(settings: Settings) -> None:
    make_checkpoint(settings, STATELESS)
    make_archive(settings, rows_of(range(10)))
    advice = compare_options(pipeline(), settings, minute(15), event_time=True)
    assert (advice.first_batch, advice.clock) == (5, "event time")
    assert advice.span == EventTimeRange(minute(15), minute(19 + 1 / 60))
    assert advice.span_origin.startswith("as given")
    with pytest.raises(EbbtideError, match="The stream has read no record"):
        compare_options(pipeline(), settings, minute(20), event_time=True)


def test_event_time_whose_batch_is_gone(settings: Settings) -> None:
    make_checkpoint(settings, replace(STATELESS, first=6, batches=4))
    make_archive(settings, rows_of(range(10)))
    advice = compare_options(pipeline(), settings, minute(13), event_time=True)
    assert "The batch that read it first is gone" in str(advice.rewind.problem)
    assert advice.recommended == "reprocess"
    assert advice.span == EventTimeRange(minute(13), minute(19 + 1 / 60))


def test_event_time_needs_an_archive_a_history_or_a_broker(settings: Settings) -> None:
    folder = make_checkpoint(settings, STATELESS)
    make_archive(settings, rows_of(range(5)))
    advice = compare_options(pipeline(), settings, minute(12), event_time=True)
    assert "there is no broker to read" in str(advice.rewind.problem)
    assert advice.recommended == "reprocess"
    for batch in range(1, 4):
        time = minute(batch + 10).isoformat()
        write_entry(open_folder(str(folder)), entry(batch, event_times=(time, time), rows=3))
    advice = compare_options(pipeline(), settings, minute(12), event_time=True)
    assert (advice.first_batch, advice.clock) == (2, "event time")


def test_late_records_are_counted(settings: Settings) -> None:
    """Spark drops by the watermark of the batch before: of batch 7, minute 6."""
    make_checkpoint(settings, STATEFUL)
    late = [Row(0, 6, minute(5.9)), Row(1, 12, minute(6)), Row(1, 13, minute(17))]
    make_archive(settings, [*rows_of(range(7)), *late, *rows_of(range(8, 10))])
    advice = compare_options(pipeline(), settings, planned(6))
    assert advice.span is not None
    assert advice.span.start == minute(5.9)
    said = "Up to 1 of the records arrived behind the watermark"
    assert any(said in remark for remark in advice.reprocess.remarks)
    assert any("begins at 1970-01-01T00:06:00Z" in remark for remark in advice.reprocess.remarks)
    assert advice.recommended == "rewind"
    assert "a rewind drops them again" in advice.caveats[-1]


def test_records_are_chosen_by_offset_and_time(settings: Settings) -> None:
    make_archive(settings, rows_of(range(10)))
    archive = read_archive(pipeline(), settings)
    assert archive.offsets == {0: 9, 1: 18}
    found = find_records(archive, RecordFilter(ends={0: 9, 1: 4}, starts={0: 7, 1: 2}))
    assert found == ArchivedRecords(4, minute(12), minute(19), first_offsets={0: 7, 1: 2})
    watermarks = {
        0: [WatermarkStart(0, 0)],
        1: [
            WatermarkStart(0, 0),
            WatermarkStart(2, 12 * 60_000),
            WatermarkStart(3, 12 * 60_000 + 1),
        ],
    }
    judged = find_records(
        archive, RecordFilter(ends={0: 9, 1: 4}, starts={0: 7, 1: 2}, watermarks=watermarks)
    )
    assert (judged.late, judged.earliest_on_time) == (1, minute(12))
    assert find_records(archive, RecordFilter(ends={}, starts={})).records == 0
    since = find_records(archive, RecordFilter(event_time=minute(18), kafka_time=planned(9)))
    assert (since.records, since.earliest) == (3, minute(19))


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("hdfs-windowed", None),
        ("changelog-aggregation", "it aggregates over all events so far, not over windows"),
        ("rocksdb-tws", "it keeps custom state for each key"),
        ("rocksdb-join", "it joins two streams"),
    ],
)
def test_sparks_metadata_shows_what_a_result_depends_on(
    tmp_path: Path, cell: str, said: str | None
) -> None:
    folder = unpack(FIXTURES / "4.2.0" / f"{cell}.tar.gz", tmp_path / "checkpoint")
    assert why_no_range(pipeline(), read_checkpoint(str(folder))) == said


def test_what_says_something_of_each_batch_needs_no_archive(settings: Settings) -> None:
    make_checkpoint(settings, STATELESS)
    advice = compare_options(replace(pipeline(), scope="batch", archive=None), settings, planned(5))
    assert advice.reprocess.problem == (
        "A range of event time would give other results: it says something of each batch, and no "
        "range knows where those began and ended."
    )
    assert advice.recommended == "rewind"


def test_results_that_depend_on_more_than_a_range_are_rewound(settings: Settings) -> None:
    make_checkpoint(settings, STATEFUL, windowed=False)
    make_archive(settings, rows_of(range(10)))
    advice = compare_options(pipeline(), settings, planned(5))
    assert advice.recommended == "rewind"
    assert "not over windows" in str(advice.reprocess.problem)
    make_checkpoint(settings, replace(STATEFUL, operators=2))
    assert "2 operators" in str(compare_options(pipeline(), settings, planned(5)).reprocess.problem)


def test_a_running_stream_is_stopped_first(settings: Settings) -> None:
    folder, job = make_checkpoint(settings, STATELESS), pipeline(archive=None)
    with claim(str(folder), job, settings):  # which also notes where it writes
        advice = compare_options(job, settings, planned(5))
    assert advice.rewind.possible
    assert "is running" in advice.rewind.stream
    commands = [step.command for step in advice.rewind.steps]
    assert f"kill -TERM {os.getpid()}" in commands
    assert advice.rewind.command == f"ebbtide rewind {folder} --to-batch 5"


def test_a_batch_that_cannot_be_repeated_is_replanned(settings: Settings) -> None:
    folder = make_checkpoint(settings, STATELESS)
    for batch in (4, 5):
        entry = (folder / f"offsets/{batch}").read_text()
        entry = entry.replace("v1\n", "v2\n").replace("spark.sql.shuffle.partitions", "other")
        entry = entry.replace('{"visits"', '0:{"visits"')
        (folder / f"offsets/{batch}").write_text(entry)
    advice = compare_options(pipeline(archive=None), settings, planned(5))
    assert advice.rewind.possible
    assert "--to-batch 5 --replan" in advice.rewind.command


def test_damaged_state_closes_the_rewind(settings: Settings) -> None:
    folder = make_checkpoint(settings, STATEFUL)
    (folder / "state/0/1/5.zip").unlink()
    make_archive(settings, rows_of(range(10)))
    advice = compare_options(pipeline(), settings, planned(5))
    assert "Version 5 of operator 0 partition 1 does not load" in str(advice.rewind.problem)
    assert advice.rewind.remedy == f"With ebbtide rewind {folder}: Try --to-latest-good."
    assert advice.recommended == "reprocess"
    assert advice.rewind.batches == 5  # what it would have taken is still said


def test_a_broker_that_does_not_answer_closes_both(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = partial(kafka.find_problem, timeout_seconds=0.2)
    monkeypatch.setattr(kafka, "find_problem", quick)
    make_checkpoint(settings, STATELESS)
    make_archive(settings, rows_of(range(10)))
    with socket.socket() as taken:  # a port that nobody listens to
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        named = replace(settings, bootstrap_servers=address)
        advice = compare_options(pipeline(), named, planned(5))
    assert not advice.possible
    assert f"No Kafka broker answers at {address}" in str(advice.rewind.problem)
    assert advice.rewind.problem == advice.reprocess.problem
    assert advice.rewind.records == 15


def test_flags_are_typed_again(settings: Settings) -> None:
    folder = make_checkpoint(settings, STATELESS)
    make_archive(settings, rows_of(range(10)))
    flags = {"--home": "a b", "--timezone": "UTC", "--checkpoint": str(folder)}
    advice = compare_options(pipeline(), settings, planned(5), checkpoint=str(folder), flags=flags)
    assert "--home 'a b'" in advice.rewind.command
    assert "--timezone" not in advice.rewind.command
    assert advice.rewind.steps[-1].command == (
        f"ebbtide run visits-counter --checkpoint {folder} --home 'a b' --timezone UTC"
    )
    assert advice.reprocess.command.endswith("--home 'a b' --timezone UTC")
    assert advice.rewind.steps[0].command == "ebbtide broker start --home 'a b'"


def test_a_far_cheaper_rewind_is_worth_a_stop() -> None:
    advice = _recommend_for(1_000, 5_000_000)
    assert advice[0] == "rewind"
    assert "1,000 records to replay, up to 5,000,000 to reprocess" in advice[1]
    assert _recommend_for(1_000, 90_000)[0] == "reprocess"  # ninety times as many, and soon read
    assert _recommend_for(1_000_000, 5_000_000)[0] == "reprocess"


def _recommend_for(replayed: int, read: int) -> tuple[str | None, str]:
    rewind = replace(RecoveryOption("rewind", None), records=replayed)
    reprocess = replace(RecoveryOption("reprocess", None), records=read)
    return recommend(rewind, reprocess, AffectedResults(EventTimeRange(minute(0), minute(1)), ""))


def test_json_has_all_of_it(settings: Settings) -> None:
    make_checkpoint(settings, STATEFUL)
    make_archive(settings, rows_of(range(10)))
    advice: Advice = compare_options(pipeline(), settings, planned(5))
    found = advice.to_dict()
    assert found["since"] == "1970-01-01T00:00:01.005Z"
    assert found["event_time_start"] == "1970-01-01T00:15:00.000Z"
    assert found["recommended"] == "rewind"
    for name in ("rewind", "reprocess"):
        assert found[name]["possible"] is True
        assert {"records", "bytes", "retention", "sink", "command", "steps"} <= set(found[name])
