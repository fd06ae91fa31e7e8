"""Load settings from flags, the environment and ebbtide.toml, in that order of precedence."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from ebbtide.connections import (
    SERVERS,
    KafkaConnection,
    expand_home,
    flatten,
    read_properties,
    use_java_names,
    without_decided,
)
from ebbtide.credentials import take_credentials
from ebbtide.errors import BrokerError, EbbtideError, UsageError
from ebbtide.locations import with_slashes
from ebbtide.times import find_zone

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_NAME = "ebbtide.toml"
_CHECKPOINTS = "checkpoints"
_KAFKA = "kafka"
_TEXTS = ("bootstrap_servers", "home", "kafka_config", "timezone")


@dataclass(frozen=True)
class Settings:
    """Where a local run lives and which broker it talks to.

    >>> Settings(home=Path("x")).checkpoint("visits-counter").as_posix()
    'x/checkpoints/visits-counter'
    """

    home: Path = Path(".ebbtide")
    bootstrap_servers: str | None = None
    """Kafka's address; None means the embedded broker of this home."""
    timezone: str = "UTC"
    checkpoints: tuple[str, ...] = ()
    """Checkpoints that the web UI lists besides those of the home; only the file names them."""
    url: str | None = None
    """Of a home that is a URL: checkpoints, tables and journals lie there, logs in `home`."""
    kafka_config: str | None = None
    """The properties file from which `kafka_options` come, for other processes to read."""
    kafka_options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """How to connect to `bootstrap_servers`: the properties of a Kafka client."""

    def __post_init__(self) -> None:
        # a password is in memory only: settings are shown, saved and given to other processes
        object.__setattr__(self, "url", take_credentials(self.url or "") or None)

    @property
    def kafka(self) -> KafkaConnection:
        """The connection to Kafka; refused if there is none."""
        return self.connect({})

    def connect(self, own: Mapping[str, str]) -> KafkaConnection:
        """The connection of a source or a sink with these properties of its `own`.

        It has nothing but those, so that no password goes to another cluster; only if they name no
        address is it the address of the settings.

        >>> Settings(bootstrap_servers="kafka:9092").connect({"security.protocol": "SSL"})
        KafkaConnection('kafka:9092', security.protocol=SSL)
        """
        address = own.get(SERVERS, self.bootstrap_servers)
        if address is None and self.kafka_options:
            raise UsageError(
                f"{self._origin} has no {SERVERS}.", "Add it, or add --bootstrap-servers."
            )
        if address is None:
            raise BrokerError.not_running()
        options = dict(own) or without_decided(self.kafka_options)
        options.pop(SERVERS, None)
        origin = "the options of the pipeline" if own else self._origin
        return KafkaConnection(address, options, origin=origin)

    def use_embedded(self, address: str) -> Settings:
        """The same settings with the embedded broker, which needs no options, at an address."""
        return replace(self, bootstrap_servers=address, kafka_config=None, kafka_options={})

    @property
    def names_kafka(self) -> bool:
        """Whether a Kafka is named, so that the embedded broker is not used."""
        return bool(self.bootstrap_servers or self.kafka_options)

    def kafka_flags(self) -> list[tuple[str, str]]:
        """The flags that name this Kafka, and no secret.

        >>> Settings(bootstrap_servers="kafka:9093", kafka_config="/k.properties").kafka_flags()
        [('--bootstrap-servers', 'kafka:9093'), ('--kafka-config', '/k.properties')]
        """
        named = {"--bootstrap-servers": self.bootstrap_servers, "--kafka-config": self.kafka_config}
        return [(flag, value) for flag, value in named.items() if value]

    @property
    def _origin(self) -> str:
        return self.kafka_config or f"[{_KAFKA}] in {FILE_NAME}"

    @property
    def broker(self) -> Path:
        """The embedded broker's folder."""
        return self.home / "broker"

    @property
    def logs(self) -> Path:
        """Where the JVM's own logs go, so that the terminal stays readable."""
        return self.home / "logs"

    def location(self, *parts: str) -> str:
        """The URL or the absolute path of something in the home.

        >>> Settings(url="s3a://lake/ebbtide").location("checkpoints", "visits-counter")
        's3a://lake/ebbtide/checkpoints/visits-counter'
        """
        if self.url:
            return "/".join((self.url, *parts))
        return str(self.home.joinpath(*parts).absolute())

    def checkpoint(self, pipeline: str) -> Path:
        """The default checkpoint folder of a pipeline in a home on this machine."""
        return self.home / "checkpoints" / pipeline

    def table(self, path: str) -> str:
        """A table's location: URLs and absolute paths as they are, bare names in the home."""
        path = with_slashes(path)
        if "://" in path or Path(path).is_absolute():
            return path
        return self.location("tables", path)


@dataclass(frozen=True, kw_only=True)
class SparkFlags:
    """Which Spark to start: the flags that all commands with a Spark share.

    >>> SparkFlags(master="spark://host:7077", conf={"spark.executor.cores": "2"})
    SparkFlags(master='spark://host:7077', archive_env=None)
    """

    master: str | None = None
    """Where it runs; by default on this machine."""
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    archive_env: str | PathLike[str] | None = None
    """A packed Python environment for the workers of a cluster."""


def load_settings(
    *,
    environ: Mapping[str, str] = os.environ,
    file: Path = Path(FILE_NAME),
    **flags: str | None,
) -> Settings:
    """Take each setting from its flag, else the environment, else the file, else the default.

    >>> load_settings(environ={"EBBTIDE_TIMEZONE": "Europe/Warsaw"}).timezone
    'Europe/Warsaw'
    >>> load_settings(environ={"EBBTIDE_HOME": "a"}, home="b").home.name
    'b'
    >>> load_settings(environ={}, home="s3a://lake/ebbtide/").url
    's3a://lake/ebbtide'
    """
    from_file = _read_file(file)
    levels: list[Mapping[str, Any]] = [
        flags,
        {name: environ.get(f"EBBTIDE_{name.upper()}") for name in _TEXTS},
        from_file,
    ]
    values = {n: level[n] for level in reversed(levels) for n in _TEXTS if level.get(n)}
    servers, options = _choose_kafka(levels)
    config = values.get("kafka_config")
    zone = values.get("timezone", "UTC")
    find_zone(zone)
    home = values.get("home", str(Settings.home))
    url = _home_url(home)
    return Settings(
        home=Settings.home if url else expand_home(home),
        bootstrap_servers=servers,
        timezone=zone,
        checkpoints=tuple(from_file.get(_CHECKPOINTS, ())),
        kafka_config=str(expand_home(config).absolute()) if config else None,
        kafka_options=options,
        url=url,
    )


def _home_url(home: str) -> str | None:
    """The home as a URL without a slash at its end; None if it is a folder of this machine.

    >>> _home_url("hdfs:///") + "/checkpoints", _home_url("hdfs:/user/ann"), _home_url("data")
    ('hdfs:///checkpoints', 'hdfs:///user/ann', None)
    """
    url = with_slashes(home)
    if re.match("[A-Za-z][A-Za-z0-9+.-]+:/(?!/)", url):
        raise UsageError(
            f"--home {home} is neither a folder nor a URL.",
            f"Write {home.replace(':/', '://', 1)}, or ./{home}",
        )
    scheme, found, path = url.partition("://")
    if not found:
        return None
    if re.match("file://[^/]", url):
        raise UsageError(f"--home {home} names a host.", "Write the folder as file:///mnt/…")
    return f"{scheme}://{path.rstrip('/')}"


def _choose_kafka(levels: Iterable[Mapping[str, Any]]) -> tuple[str | None, dict[str, str]]:
    """The first address of the levels and the first properties; these may name the address, too."""
    address: str | None = None
    options: dict[str, str] | None = None
    for level in levels:
        address = address or level.get("bootstrap_servers")
        file = level.get("kafka_config")
        if options is None and (file or _KAFKA in level):
            options = use_java_names(read_properties(Path(file)) if file else level[_KAFKA])
            address = address or options.get(SERVERS)
    return address, options or {}


def _read_file(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        settings: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
        _require_known(file, settings)
    # a number of thousands of digits is a ValueError, as is what is no TOML and no UTF-8
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}.", "Fix or remove it.") from None
    except RecursionError:
        raise UsageError(f"{file} is nested too deep.", "Fix or remove it.") from None
    return settings


def _require_known(file: Path, settings: dict[str, Any]) -> None:
    """Refuse what is no setting; the properties of Kafka become one level."""
    if _KAFKA in settings and "kafka_config" in settings:
        raise UsageError(f"{file} has both kafka_config and [{_KAFKA}].", "Remove one of them.")
    for name, value in settings.items():
        strings = isinstance(value, list) and all(map(_is_text, value))
        if name == _KAFKA and isinstance(value, dict):
            settings[name] = flatten(value)
        elif not (strings if name == _CHECKPOINTS else name in _TEXTS and _is_text(value)):
            # another name may be that of a secret
            shown = f"{name} = {value!r}" if name in (*_TEXTS, _CHECKPOINTS) else name
            raise UsageError(
                f"{file} has {shown}.",
                f"Known, all strings: {', '.join(_TEXTS)}; {_CHECKPOINTS}, a list of strings; "
                f"and [{_KAFKA}], the properties of a Kafka client.",
            )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value  # no path has one


def make_folder(folder: Path, flag: str) -> Path:
    """Create a folder that must be writable; an error names the flag that chooses another."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".ebbtide-write-{os.getpid()}"
        probe.touch()
        probe.unlink(missing_ok=True)  # another thread may have been here
    except OSError as error:
        raise EbbtideError(
            f"Cannot write to {folder}: {error.strerror}.", f"Choose another folder with {flag}."
        ) from None
    return folder


def open_private(path: str, flags: int) -> int:
    """For `open(…, opener=open_private)`: a new file that only its owner can read."""
    return os.open(path, flags, 0o600)


def write_whole(file: Path, text: str, *, private: bool = False) -> None:
    """Write a file and rename it into place, so that no reader ever sees half of it."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        opener = open_private if private else None
        with open(partial, "w", encoding="utf-8", opener=opener) as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
