"""Values of the command line: times, durations, offsets, targets of a rewind, URLs; messages."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from ebbtide import times
from ebbtide.cli.topics import _read_key
from ebbtide.connectors.kafka.records import Record
from ebbtide.credentials import take_credentials
from ebbtide.errors import EbbtideError, first_line, mask, printable
from ebbtide.history.event_times import event_time
from ebbtide.local.broker import _last_broker
from ebbtide.locations import one_spelling, parse_url, with_slashes
from ebbtide.notes import parse_lines
from ebbtide.parsing import parse_json
from ebbtide.rewind import RewindRequest
from ebbtide.rewind.request import _TARGETS
from ebbtide.rewind.target import ToOffsets
from ebbtide.web.batches import BytesPreview
from tests.fuzz.target import Target, scratch, to_text


def _parse_time(data: bytes) -> None:
    """A time and a zone, a line each."""
    text, _, zone = to_text(data).partition("\n")
    with suppress(EbbtideError):
        times.echo(times.parse_time(text), "Europe/Warsaw")
    at = times.parse_time(text, zone if zone in _ZONES else "Pacific/Apia")
    for zone in _ZONES:
        times.echo(at, zone)
    times.exact_time(at)


_ZONES = ("UTC", "Europe/Warsaw", "Pacific/Kiritimati", "America/Adak")


def _parse_duration(data: bytes) -> None:
    times.parse_duration(to_text(data))


def _parse_offsets(data: bytes) -> None:
    str(ToOffsets.parse(to_text(data)))


def _ask(data: bytes) -> None:
    """The flags of a rewind, by name."""
    try:
        given = parse_json(data)
    except ValueError:
        return
    if isinstance(given, dict):
        known = {*_TARGETS, "sink", "replan", "sink_table", "sink_files"}
        flags: dict[str, Any] = {n: v for n, v in given.items() if n in known and type(v) is str}
        request = RewindRequest.parse(str(given.get("checkpoint")), **flags)
        request.command()
        request.execute_command(3)


def _parse_url(data: bytes) -> None:
    text = to_text(data)
    take_credentials(text)
    one_spelling(with_slashes(text))
    parse_url(text)


def _mask(data: bytes) -> None:
    text = to_text(data)
    mask(printable(text))
    first_line(text)


def _parse_json(data: bytes) -> None:
    value = parse_json(data)
    json.dumps(value, ensure_ascii=False).encode()
    list(parse_lines(to_text(data)))


def _read_broker(data: bytes) -> None:
    (scratch() / "broker.json").write_bytes(data)
    broker = _last_broker(scratch())
    if broker is not None:
        _ = broker.alive, broker.bootstrap_servers


def _read_record(data: bytes) -> None:
    """What a record holds: its event time, what the web UI shows, and a line of `consume`."""
    record = Record("visits", 0, 5, 1_756_969_200_000, data[:9], data, (("a", data[:5]),))
    event_time(record, "at", "Europe/Warsaw")
    record.to_json().encode()
    BytesPreview.of(data)
    _read_key(data, "at")


TARGETS = (
    Target(
        "record",
        lambda: [b'{"at":"2025-09-04T07:00:00Z","id":5}', b'{"at":1756969200.5}', b"\xff\x00"],
        _read_record,
        share=40,
    ),
    Target(
        "time",
        lambda: [
            b"2026-01-05T10:00:00.250Z\nUTC",
            b"2026-03-29 02:30\nEurope/Warsaw",
            b"2026-W01-1T10:00+14:00",
            b"20260105T100000,123456789-12:00",
        ],
        _parse_time,
        share=60,
    ),
    Target(
        "duration", lambda: [b"PT2H30M", b"P1DT12H", b"P2W", b"PT0.5S"], _parse_duration, share=60
    ),
    Target("offsets-flag", lambda: [b'{"visits":{"0":12,"1":30}}'], _parse_offsets, share=60),
    Target(
        "rewind-flags",
        lambda: [
            b'{"to_batch":"5","replan":"on","sink":"restore","sink_table":"/t"}',
            b'{"shift_by":"-3","sink_files":"s3://k:p@b/c"}',
            b'{"to_offsets":"{\\"visits\\":{\\"0\\":12}}","checkpoint":"/my c"}',
            b'{"by_duration":"PT2H","sink":"none"}',
            b'{"to_event_time":"2026-01-05T10:00","to_datetime":"2026"}',
        ],
        _ask,
        share=60,
    ),
    Target(
        "url",
        lambda: [
            b"s3a://key:se/cr@t@bucket/visits",
            b"abfss://container@account.dfs.core.windows.net/c?sv=1&sig=abc%3D",
            b"hdfs://name:8020/user/ann@example.com",
            b"webhdfs://n:9870/c",
            b"file:///data/a%20b",
            b"simplecache::s3://b/c",
        ],
        _parse_url,
        share=60,
    ),
    Target(
        "message",
        lambda: [
            b"s3://key:se/cr@t@bucket/visits is gone\nmore",
            b"https://h/c?sv=1&sig=abc%3D AccountName=a;AccountKey=abc==;x=y \x1b[2J",
        ],
        _mask,
        share=40,
    ),
    Target(
        "json",
        lambda: [b'{"visits":{"0":5,"a":[1.5,null,"\\u00e9\\ud83d\\ude00"]}}', b'{"a":1}\n{"b":2}'],
        _parse_json,
        (ValueError,),
        share=60,
    ),
    Target(
        "broker-note",
        lambda: [b'{"pid":5,"port":9092,"started":1.5,"controller_port":9093}'],
        _read_broker,
    ),
)
