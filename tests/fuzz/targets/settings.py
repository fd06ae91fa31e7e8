"""Settings: ebbtide.toml, the environment, Hadoop's files, the list of known checkpoints."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from ebbtide import hadoop
from ebbtide.config import load_settings
from ebbtide.errors import EbbtideError
from ebbtide.locations import name_services
from ebbtide.registry import _read_list, absolute, is_checkpoint, is_remote, tell_apart
from tests.fuzz.target import Target, scratch, to_text


def _load(data: bytes) -> None:
    file = scratch() / "ebbtide.toml"
    file.write_bytes(data)
    settings = load_settings(environ={}, file=file)
    _ = settings.kafka_flags(), settings.location("x"), settings.table("y")
    with suppress(EbbtideError):
        repr(settings.kafka)


def _load_environment(data: bytes) -> None:
    """The values of the variables, a line each; no environment has a NUL."""
    names = ("HOME", "BOOTSTRAP_SERVERS", "TIMEZONE", "KAFKA_CONFIG")
    lines = os.fsdecode(data.replace(b"\0", b"")).split("\n")
    environ = {f"EBBTIDE_{name}": line for name, line in zip(names, lines, strict=False) if line}
    settings = load_settings(environ=environ, file=scratch() / "none.toml")
    _ = settings.location("x"), settings.table("y")


def _read_site(data: bytes) -> None:
    name_services(_expanded(hadoop.parse_site(to_text(data), "core-site.xml")))


def _expanded(settings: dict[str, str]) -> dict[str, str]:
    return {name: hadoop._expand(value, settings) for name, value in settings.items()}


def _read_hadoop(data: bytes) -> None:
    folder = _folder()
    (folder / "core-site.xml").write_bytes(data)
    hadoop._read_files.cache_clear()
    try:
        hadoop.hadoop_settings({"HADOOP_CONF_DIR": str(folder), "SPARK_CONF_DIR": str(folder)})
    finally:
        hadoop._read_files.cache_clear()


@cache
def _folder() -> Path:
    folder = scratch() / "hadoop"
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text("spark.hadoop.fs.s3a.endpoint  http://s3:9000\n")
    return folder


def _read_recent(data: bytes) -> None:
    file = scratch() / "recent.json"
    file.write_bytes(data)
    places = _read_list(file)
    for place in places:
        absolute(place)
        _ = is_remote(place) or is_checkpoint(place)
    tell_apart(places)


_SITE = (
    b"<configuration><property><name>fs.defaultFS</name><value>hdfs://${host}:8020</value>"
    b"</property><property><name>host</name><value>${env.HOST:-name}</value></property>"
    b"<property><name>dfs.nameservices</name><value>lake</value></property></configuration>"
)
_TEXTS = (
    b'home = ".ebbtide"\nbootstrap_servers = "kafka:9092"\ntimezone = "Europe/Warsaw"\n'
    b'checkpoints = ["/a", "s3://b/c"]\n'
)
_TABLE = (
    b'home = "s3a://lake/ebbtide"\n[kafka]\nsasl.mechanism = "PLAIN"\nretries = 3\n'
    b'"client.id" = "visits"\nssl.key.password = "x"\nf = 1.5\nb = true\n'
)
TARGETS = (
    Target(
        "toml",
        lambda: [
            _TEXTS,
            _TABLE,
        ],
        _load,
        share=30,
    ),
    Target(
        "environment",
        lambda: [b"~/data\nkafka:9092\nEurope/Warsaw\n", b"file:///h\n\nAmerica/Lima\n/none"],
        _load_environment,
        share=30,
    ),
    Target("hadoop-site", lambda: [_SITE], _read_site, share=30),
    Target("hadoop-folder", lambda: [_SITE], _read_hadoop, share=10),
    Target("recent", lambda: [b'["/a/b","s3://b/c","~/x","file:///d"]'], _read_recent),
)
