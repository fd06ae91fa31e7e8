from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide import Console, Delta, Files, Kafka, Pipeline, Sessions
from ebbtide.errors import UsageError
from ebbtide.systems import find_pipeline

SCHEMA = "visit_id INT, event_time TIMESTAMP"


def same(rows: Any) -> Any:
    return rows


PIPELINE = Pipeline(
    "visits-raw",
    source=Kafka("visits", schema=SCHEMA),
    event_time="event_time",
    transform=same,
    sink=Kafka("out"),
)


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        PIPELINE.name = "other"  # type: ignore[misc]


def test_topics_are_those_that_a_run_touches() -> None:
    assert PIPELINE.topics == ["visits", "out", "visits-raw.dead-letters"]
    assert replace(PIPELINE, dead_letters=Delta("dead")).topics == ["visits", "out"]
    assert replace(PIPELINE, source=Files("in", schema=SCHEMA), sink=Console()).topics == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "two words"}, "'two words' is not a pipeline name"),
        ({"name": "../x"}, "is not a pipeline name"),
        ({"output_mode": "upsert"}, "output mode 'upsert'"),
        ({"scope": "Batch"}, "scope 'Batch'"),
        ({"scope": "batch", "sink": Console()}, "scope batch and a Console sink"),
        ({"source": Kafka("visits")}, "has no schema"),
        ({"source": Files("in")}, "has no schema"),
    ],
)
def test_what_cannot_run_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        replace(PIPELINE, **change)


def test_a_gap_ends_sessions() -> None:
    with pytest.raises(UsageError, match="ends no session"):
        Sessions("visit_id", timedelta())


def test_a_topic_needs_a_name() -> None:
    with pytest.raises(UsageError, match="'a b' is not a topic name"):
        Kafka("a b")


def test_secrets_do_not_show() -> None:
    secret = Kafka("visits", options={"kafka.sasl.jaas.config": "password=hunter2"})
    assert "hunter2" not in repr(secret)


def test_a_pipeline_is_found_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from ebbtide import Console, Kafka, Pipeline\n"
        "clicks = Pipeline('clicks', source=Kafka('c', schema='t TIMESTAMP'), event_time='t',\n"
        "                  transform=lambda rows: rows, sink=Console())\n"
    )
    assert find_pipeline(f"{file}:clicks").name == "clicks"
    with pytest.raises(UsageError, match=r"no Pipeline named 'visits'. It has: clicks"):
        find_pipeline(f"{file}:visits")


def test_a_file_that_needs_a_session_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / "eager.py"
    file.write_text("from pyspark.sql.functions import udf\n@udf('int')\ndef f(n): return n\n")
    with pytest.raises(UsageError, match=r"needs a Spark session when it is imported"):
        find_pipeline(f"{file}:clicks")


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("visit-counter", r"no job 'visit-counter'.*visits-windows-counter"),
        ("nowhere.py:x", "There is no file nowhere.py"),
        ("no_such_module:x", "There is no module 'no_such_module'"),
    ],
)
def test_an_unknown_reference_says_what_there_is(reference: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        find_pipeline(reference)


def test_dead_letters_go_to_the_kafka_of_the_source() -> None:
    login = {"kafka.bootstrap.servers": "other:9093", "kafka.sasl.mechanism": "PLAIN"}
    source = Kafka("visits", schema="at TIMESTAMP", options={**login, "failOnDataLoss": "false"})
    pipeline = Pipeline(
        "visits", source=source, event_time="at", transform=lambda rows: rows, sink=Console()
    )
    letters = pipeline.dead_letter_sink
    assert isinstance(letters, Kafka)
    assert letters.options == login, "and nothing else of the source's"
    assert not pipeline.needs_broker, "no topic depends on the settings"
    assert replace(pipeline, sink=Kafka("counts")).needs_broker
    own = replace(pipeline, dead_letters=Kafka("broken"))
    assert own.dead_letter_sink == Kafka("broken")
