"""Kafka as a sink: records are written again, and readers can tell them by a header."""

from __future__ import annotations

from collections.abc import Mapping

from ebbtide.checks import Check, CheckKind
from ebbtide.config import Settings
from ebbtide.connectors.base import ReplayedQuery, SinkConnector, SinkPlace, SinkPlan
from ebbtide.connectors.streams import OutputPosition
from ebbtide.errors import EbbtideError
from ebbtide.pipeline import Kafka, Pipeline


class KafkaSink(SinkConnector[Kafka]):
    """A topic, which keeps every record and does not know which batch wrote it."""

    spark_name = "KafkaTable"

    def place(self, sink: Kafka, settings: Settings) -> SinkPlace:
        return SinkPlace(sink.kind, str(sink), sink.topic)

    def recognize(self, name: str, options: Mapping[str, str]) -> SinkPlace | None:
        topic = options.get("topic", "")
        shown = f"topic {topic}" if topic else "topics that each row names"
        return SinkPlace("kafka", shown, topic) if name == "kafka" else None

    def plan(self, place: SinkPlace, query: ReplayedQuery) -> tuple[SinkPlan, Check]:
        from ebbtide.connectors.kafka.admin import offsets_since

        plan, check = super().plan(place, query)
        if query.connection is None or not place.path:  # it is not known which topic
            return plan, check
        since_ms = query.first_batch.offsets.timestamp_ms
        spans = offsets_since(query.connection, place.path, since_ms)
        if not spans:
            return plan, check
        detail = check.detail
        if records := sum(end - first for first, end in spans.values()):
            begin = ", ".join(f"{p}:{at}" for p, (at, end) in sorted(spans.items()) if end > at)
            detail += f": what repeats begins at offset {begin}, up to {records:,} records"
        repeats = {str(partition): span for partition, span in spans.items()}
        return SinkPlan(place, repeats=repeats), CheckKind.SINK.warn(
            detail, "Readers can tell them by the header ebbtide-timeline."
        )

    def format_replay(self, sink: Kafka, batches: str, check: Check) -> str:
        return f"{sink} gets the output of {batches} again, {_format_keys(sink)}"

    def position(self, pipeline: Pipeline, settings: Settings) -> OutputPosition:
        from ebbtide.connectors.kafka.admin import list_topics, retained_offsets

        (topic,) = pipeline.sink.topics
        connection = settings.connect(pipeline.sink.connection)
        if topic not in list_topics(connection):
            raise EbbtideError(
                f"There is no topic {topic} at {connection}, to which {pipeline.name} writes.",
                f"Start the stream, which creates it: ebbtide run {pipeline.name}",
            )
        retained = retained_offsets(connection, topic)
        return OutputPosition(offsets={p: latest for p, (_, latest) in retained.items()})

    def check_reprocess(self, sink: Kafka, pipeline: Pipeline, *, dated: bool = True) -> Check:
        again = f"{sink} gets the results again, {_format_keys(sink)}"
        check = CheckKind.OUTPUT.ok if sink.key else CheckKind.OUTPUT.warn
        return check(f"{again}; --only-changed: what differs")


def _format_keys(sink: Kafka) -> str:
    return "under the same keys" if sink.key else "without keys, so that readers see both"
