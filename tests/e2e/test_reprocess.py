"""Bad input to a reprocess: one clear line, nothing written, and Spark is not even started."""

from __future__ import annotations

import pytest

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka.admin import list_topics
from tests.conftest import Cli
from tests.unit.archive import tables

START, END = "2025-09-04T07:00", "2025-09-04T07:10"


def test_a_bad_reprocess_is_refused(settings: Settings, inside: Cli) -> None:
    kafka.create_missing_topics(settings.kafka, ["visits"])

    def refused(start: str, end: str, *more: str) -> str:
        flags = ("--event-time-start", start, "--event-time-end", end, "--execute", "--yes")
        where = ("--home", settings.home, "--bootstrap-servers", settings.kafka.address)
        answer = inside("reprocess", "visits-counter", *flags, *where, *more)
        assert answer.returncode in (1, 2), answer.stderr
        assert answer.stdout == ""
        assert "Traceback" not in answer.stderr
        assert not (settings.home / "runs").exists()
        assert list(list_topics(settings.kafka)) == ["visits"]
        return answer.stderr

    assert "Its start must be before its end, which is not part of it" in refused(END, START)
    assert "'yesterday' is not a time" in refused("yesterday", END)
    assert "is not a duration. Write it as PT2H" in refused(START, END, "--chunk", "1 hour")
    assert "Use a name that ends in .png, .svg or .pdf" in refused(
        START, END, "--plot", "windows.txt"
    )
    # a time without a zone is read in the session's, and echoed
    said = refused(START, END, "--timezone", "Europe/Warsaw")
    assert "2025-09-04 07:00:00 Europe/Warsaw = 2025-09-04T05:00:00.000Z" in said
    assert "There is no archive of pipeline visits-counter" in said
    assert "Type: ebbtide archive visits-counter" in said

    tables.create(settings)
    tables.append(settings, 0, (0, 0, "07:00"))
    assert "There is no topic visits_counter" in refused(START, END)
    assert "Add --timezone UTC" in refused(START, END, "--timezone", "Europe/Warsaw")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"ebbtide.layout": None}, "is a Delta table, but no archive of Ebbtide"),
        ({"ebbtide.topic": "clicks"}, "is an archive with topic clicks"),
        ({"ebbtide.event-time": "at"}, "is an archive with event time at"),
    ],
    ids=["no archive", "another topic", "another event time"],
)
def test_another_table_is_refused(
    settings: Settings, inside: Cli, changed: dict[str, str | None], says: str
) -> None:
    tables.create(settings, changed)
    flags = ("--event-time-start", START, "--event-time-end", END, "--home", settings.home)
    answer = inside("reprocess", "visits-counter", *flags)
    assert answer.returncode == 1
    assert says in answer.stderr


def test_a_run_that_never_was_is_refused(settings: Settings, inside: Cli) -> None:
    answer = inside("retry", "none-such", "--home", settings.home)
    assert answer.returncode == 2
    assert "There is no run 'none-such'" in answer.stderr
