"""The micro-batch consumer: print each visit from inside the tasks, batch by batch."""
# ruff: noqa: T201 - printing is what it does

from __future__ import annotations

from collections.abc import Iterable

from pyspark import TaskContext
from pyspark.sql import DataFrame, Row

from ebbtide.pipeline import ForeachBatch, Kafka, Pipeline
from ebbtide.systems.micro_batch.printing import print_from_tasks


def print_visits(visits: DataFrame, _number: int) -> None:
    """Print one line for the batch here, and one for each visit in the tasks."""
    print("✍️ Printing visits", flush=True)
    print_from_tasks(visits, print_partition)


def print_partition(visits: Iterable[Row]) -> None:
    """Print the visits of one task."""
    task = TaskContext.get()
    assert task is not None
    for visit in visits:
        print(f"Partition[{task.partitionId()}] > Printing visit={visit}")


pipeline = Pipeline(
    "visits-micro-batch",
    source=Kafka(
        "visits",
        schema="visit_id STRING, event_time TIMESTAMP, page STRING",
        options={"maxOffsetsPerTrigger": "1000"},
    ),
    event_time="event_time",
    transform=lambda visits: visits,
    sink=ForeachBatch(print_visits),
    trigger="20 seconds",
)
