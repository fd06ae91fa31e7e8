"""Flags, environment and file in, one frozen `Settings` out, in that order of precedence."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ebbtide.connections import KafkaConnection
from ebbtide.errors import BrokerError, EbbtideError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_NAME = "ebbtide.toml"
_CHECKPOINTS = "checkpoints"
_TEXTS = ("bootstrap_servers", "home", "timezone")


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
    """Checkpoints that the page shows besides those of the home; only the file names them."""

    @property
    def kafka(self) -> KafkaConnection:
        """The connection to Kafka; refused if there is none."""
        if not self.bootstrap_servers:
            raise BrokerError.not_running()
        return KafkaConnection(self.bootstrap_servers)

    @property
    def broker(self) -> Path:
        """The embedded broker's folder."""
        return self.home / "broker"

    @property
    def logs(self) -> Path:
        """Where the JVM's own logs go, so that the terminal stays readable."""
        return self.home / "logs"

    @property
    def runs(self) -> Path:
        """Where each reprocess keeps its journal."""
        return self.home / "runs"

    def checkpoint(self, pipeline: str) -> Path:
        """The default checkpoint folder of a pipeline."""
        return self.home / "checkpoints" / pipeline

    def table(self, path: str) -> str:
        """A table's location: URLs and absolute paths as they are, bare names in the home."""
        if "://" in path or Path(path).is_absolute():
            return path
        return str((self.home / "tables" / path).absolute())


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
    """
    from_file = _read_file(file)
    values: dict[str, str] = {}
    for name in _TEXTS:
        chosen = flags.get(name) or environ.get(f"EBBTIDE_{name.upper()}") or from_file.get(name)
        if chosen:
            values[name] = chosen
    zone = values.get("timezone", "UTC")
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise UsageError(
            f"There is no time zone {zone!r}.", "Use a name such as UTC or Europe/Warsaw."
        ) from None
    return Settings(
        home=Path(values.get("home", Settings.home)).expanduser(),
        bootstrap_servers=values.get("bootstrap_servers"),
        timezone=zone,
        checkpoints=tuple(from_file.get(_CHECKPOINTS, ())),
    )


def _read_file(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        found = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}.", "Mend or remove it.") from None
    for name, value in found.items():
        strings = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if not (strings if name == _CHECKPOINTS else name in _TEXTS and isinstance(value, str)):
            raise UsageError(
                f"{file} has {name} = {value!r}.",
                f"Known, all strings: {', '.join(_TEXTS)}; and {_CHECKPOINTS}, a list of strings.",
            )
    return dict(found)


def make_folder(folder: Path, flag: str) -> Path:
    """Create a folder that we must be able to write to, or say which flag chooses another."""
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
    """For `open(…, opener=open_private)`: a file that is made is only for us to read."""
    return os.open(path, flags, 0o600)


def write_whole(file: Path, text: str, *, private: bool = False) -> None:
    """Write a file whole and rename it into place, so that no reader ever sees half of it."""
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
