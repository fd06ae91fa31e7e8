"""What a report shows: the lines to type that it offers, and no password."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ebbtide.checks import PartVerdict
from ebbtide.compatibility import read_demands
from ebbtide.compatibility.checking import list_ways_out
from ebbtide.compatibility.planned import PlannedQuery
from ebbtide.compatibility.verdicts import CompatibilityReport
from tests.trees import Shape, make

KEY = PartVerdict.breaks("operator 0 key", "a: long becomes a: string")


def list_lines(folder: Path, part: PartVerdict, refusal: str | None = None) -> list[str]:
    checkpoint, demands = read_demands(str(folder))
    query = PlannedQuery("4.2.0", (), (), refusal=refusal)
    return list(list_ways_out(checkpoint, demands, query, [part]))


def test_state_that_breaks_is_left_behind(tmp_path: Path) -> None:
    folder = make(tmp_path / "checkpoint", Shape())
    (line,) = list_lines(folder, KEY)
    assert line.startswith(f"ebbtide fork {folder} NEW --at-batch 7 --offsets-only ")


def test_not_every_source_can_be_forked(tmp_path: Path) -> None:
    """`fork --offsets-only` refuses all but Kafka and files."""
    folder = make(tmp_path / "checkpoint", Shape())
    for entry in (folder / "offsets").iterdir():
        if entry.name.isdigit():
            entry.write_text(re.sub(r'\{"visits".*', "7", entry.read_text("utf-8")), "utf-8")
    (line,) = list_lines(folder, KEY)
    assert line.startswith(f"ebbtide offsets {folder} ")


def test_there_is_no_way_for_a_query_that_spark_never_runs(tmp_path: Path) -> None:
    folder = make(tmp_path / "checkpoint", Shape())
    mode = PartVerdict.breaks("output mode", "append is not allowed")
    assert not list_lines(folder, mode, "append is not allowed")
    assert list_lines(folder, mode)


def test_no_report_holds_a_password() -> None:
    place = "s3a://key:secret@bucket/in"
    part = PartVerdict.breaks("source 0", f"files {place} becomes /in", next_=f"Read {place}")
    report = CompatibilityReport(
        place, 7, "4.2.0", (part,), (place,), (f"ebbtide offsets {place}",)
    )
    text = json.dumps(report.mask().to_dict())
    assert "secret" not in text
    assert text.count("s3a://key:***@bucket/in") == 5
