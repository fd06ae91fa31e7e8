"""Which tables an archive writes by itself, by the actions in Delta's log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ebbtide.archive.commit import why_not_plain
from ebbtide.archive.layout import COLUMNS, PARTITION_COLUMNS, TABLE_PROPERTIES

PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
FIELDS = [
    {"name": name, "type": "string", "nullable": True, "metadata": {}}
    for name in [*COLUMNS, *PARTITION_COLUMNS]
]


def metadata(
    fields: list[dict[str, Any]] = FIELDS, more: dict[str, str] | None = None
) -> dict[str, Any]:
    marks = {**TABLE_PROPERTIES, "ebbtide.layout": "1", **(more or {})}
    return {"schemaString": json.dumps({"fields": fields}), "configuration": marks}


def test_a_table_as_it_was_created() -> None:
    assert why_not_plain(metadata(), PROTOCOL) is None
    kept = {"delta.logRetentionDuration": "interval 90 days", "owner": "us"}
    assert why_not_plain(metadata(more=kept), PROTOCOL) is None
    by_name = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["appendOnly"]}
    assert why_not_plain(metadata(), by_name) is None


@pytest.mark.parametrize(
    ("table", "protocol", "problem"),
    [
        (metadata(), {**PROTOCOL, "minWriterVersion": 5}, "writer version 5"),
        (metadata(), {**PROTOCOL, "writerFeatures": ["columnMapping"]}, "feature columnMapping"),
        (metadata(more={"delta.appendOnly": "true"}), PROTOCOL, "property delta.appendOnly = true"),
        (metadata(more={"delta.dataSkippingStatsColumns": "key"}), PROTOCOL, "property delta.data"),
        (
            metadata(more={"delta.constraints.c": "offset > 0"}),
            PROTOCOL,
            "property delta.constraints",
        ),
        ({"configuration": {}}, PROTOCOL, "it is gone"),
        (metadata([*FIELDS[1:], FIELDS[0]]), PROTOCOL, "in another order"),
        (metadata([{**FIELDS[0], "nullable": False}, *FIELDS[1:]]), PROTOCOL, "of their own"),
        (metadata([{**FIELDS[0], "metadata": {"a": 1}}, *FIELDS[1:]]), PROTOCOL, "of their own"),
    ],
)
def test_another_table_is_left_to_delta(
    table: dict[str, Any], protocol: dict[str, Any], problem: str
) -> None:
    assert problem in str(why_not_plain(table, protocol))
