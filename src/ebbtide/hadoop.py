"""Read Hadoop's settings as Spark finds them, so that both sides use the same stores alike.

The first of these that has a setting decides::

    1  spark.hadoop.* of the run itself: --conf, the pipeline, spark-submit
    2  spark.hadoop.* in spark-defaults.conf: SPARK_CONF_DIR, else SPARK_HOME/conf
    3  core-site.xml and hdfs-site.xml: HADOOP_CONF_DIR, else YARN_CONF_DIR, HADOOP_HOME/etc/hadoop
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as Xml

from ebbtide.connections import parse_properties
from ebbtide.errors import UsageError
from ebbtide.parsing import MAX_LOG_BYTES, read_regular

_PREFIX = "spark.hadoop."
_SITES = ("core-site.xml", "hdfs-site.xml")
_VARIABLE = re.compile(r"\$\{(env\.)?([^}$:\s]+?)(?::?-([^}$]*))?\}")
_MAX_EXPANSIONS = 20
_LONGEST = 1 << 16
"""No value becomes longer: settings that contain each other ten times would fill the memory."""
_OF_THE_RUN: dict[str, str] = {}


def use_spark_settings(conf: Mapping[str, str]) -> None:
    """Take the settings of a run: those of Hadoop are used for every store from now on."""
    _OF_THE_RUN.update(_of_hadoop(conf))


def hadoop_settings(environ: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Hadoop's settings by their own names, such as `fs.s3a.endpoint`."""
    return {**_read_files(*_find_folders(environ)), **_OF_THE_RUN}


def spark_defaults(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The settings of spark-defaults.conf; none if there is no such file."""
    return _read_defaults(_find_folders(environ)[1])


def _find_folders(environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    spark, hadoop = environ.get("SPARK_HOME"), environ.get("HADOOP_HOME")
    return (
        environ.get("HADOOP_CONF_DIR")
        or environ.get("YARN_CONF_DIR")
        or (f"{hadoop}/etc/hadoop" if hadoop else None),
        environ.get("SPARK_CONF_DIR") or (f"{spark}/conf" if spark else None),
    )


@cache
def _read_files(hadoop: str | None, spark: str | None) -> Mapping[str, str]:
    settings: dict[str, str] = {}
    for name in _SITES:
        settings |= parse_site(_read(hadoop, name), f"{hadoop}/{name}")
    settings |= _of_hadoop(_read_defaults(spark))
    return {name: _expand(value, settings) for name, value in settings.items()}


def _read_defaults(folder: str | None) -> dict[str, str]:
    properties = parse_properties(_read(folder, "spark-defaults.conf"))
    return {name: value.strip() for name, value in properties.items()}


def _read(folder: str | None, name: str) -> str:
    path = Path(folder or "", name)
    if folder is None or not path.exists():
        return ""
    try:
        return read_regular(str(path), limit=MAX_LOG_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.", "Fix or remove it.") from None


def parse_site(text: str, path: str) -> dict[str, str]:
    """The properties of a Hadoop configuration file; none of an empty text.

    >>> parse_site("<configuration><property><name>fs.s3a.endpoint</name>"
    ...            "<value>http://s3:9000</value></property></configuration>", "core-site.xml")
    {'fs.s3a.endpoint': 'http://s3:9000'}
    """
    if not text.strip():
        return {}
    if "<!ENTITY" in text:
        raise UsageError(f"{path} declares entities.", "Write their values instead.")
    try:
        properties = list(Xml.fromstring(text).iter("property"))
    except Xml.ParseError as error:
        raise UsageError(f"{path} is no XML: {error}.", "Fix or remove it.") from None
    pairs = [((each.findtext("name") or "").strip(), each.findtext("value")) for each in properties]
    return {name: value.strip() for name, value in pairs if name and value is not None}


def _of_hadoop(conf: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(_PREFIX): value
        for name, value in conf.items()
        if name.startswith(_PREFIX)
    }


def _expand(value: str, settings: Mapping[str, str]) -> str:
    """Put other settings, and variables of the environment, in their places, as Hadoop does."""

    def found(match: re.Match[str]) -> str:
        of_environment, name, default = match.groups()
        place = os.environ if of_environment else settings
        return place.get(name) or (match[0] if default is None else default)

    for _ in range(_MAX_EXPANSIONS):
        expanded = _VARIABLE.sub(found, value)
        if expanded == value or len(expanded) > _LONGEST:
            break
        value = expanded
    return value
