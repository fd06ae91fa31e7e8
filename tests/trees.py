"""Checkpoints built file by file, in every layout that Spark has; small, or as large as asked."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

LAYOUTS = ("none", "hdfs", "rocksdb", "changelog", "v2", "v2-zips")
JOIN_STORES = (
    "left-keyToNumValues",
    "left-keyWithIndexToValue",
    "right-keyToNumValues",
    "right-keyWithIndexToValue",
)
_MOST_LINKS = 50_000
"""To one file; ext4 allows 65,000."""
_NAMES = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


@dataclass(frozen=True)
class Shape:
    """What a checkpoint holds."""

    layout: str = "none"
    batches: int = 7
    committed: int | None = None
    """How many of them are committed; all if none is said."""
    operators: int = 1
    partitions: int = 2
    stores: tuple[str, ...] = ("default",)
    snapshot_every: int = 3
    first: int = 0
    """The oldest batch that is left, and the oldest version of the state."""
    hadoop_checksums: bool = True
    spark_checksums: bool = False
    operator_metadata: str | None = None
    """`v1`, or `v2` as transformWithState and joins write it."""
    offsets: str = "v1"
    """The format of the offset log: `v2` names each source."""
    seed: str = "old"
    """Another seed makes another timeline: other contents under the same names."""
    hollow: int = 0
    """State files up to this version are names only, and so are all their checksum files then:
    links to an empty file. Enough for commands that read names, and much faster to make."""


def build(folder: Path, batches: int, committed: int) -> Path:
    """A checkpoint with logs only."""
    return make(folder, Shape(batches=batches, committed=committed))


def make(folder: Path, shape: Shape) -> Path:
    """Write a checkpoint of a shape."""
    maker = _Maker(folder, shape)
    maker.write("metadata", b'{"id":"7b3c"}')
    (folder / "state").mkdir(parents=True, exist_ok=True)
    maker.write("sources/0/0", b'\x00v1\n{"visits":{"0":0,"1":0}}')
    maker.logs()
    if shape.layout != "none":
        for operator in range(shape.operators):
            maker.operator(operator)
    (folder / "offsets" / f".{shape.first + shape.batches}.6f1c.tmp").write_text("v1")
    maker.empty.close()
    return folder


def rewrite_logs(folder: Path, shape: Shape) -> None:
    """Give a checkpoint the logs of another shape with the same state."""
    _Maker(folder, shape).logs()


class _Empty:
    """A file without content beside a checkpoint until `close`; its links are in there."""

    def __init__(self, path: str) -> None:
        self.path, self.links = path, 0

    def link(self, path: str) -> None:
        if self.links % _MOST_LINKS == 0:
            self.close()
            _write(self.path, b"")
        self.links += 1
        os.link(self.path, path)

    def close(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path)


class _Maker:
    def __init__(self, folder: Path, shape: Shape) -> None:
        self.folder, self.shape = folder, shape
        self.made: set[str] = set()
        self.shared: set[str] = set()
        self.empty = _Empty(f"{folder}.empty")

    def write(self, path: str, content: bytes | None, *, state: bool = False) -> None:
        """A file with its checksum files; without content, names only."""
        place, _, name = f"{self.folder}/{path}".rpartition("/")
        if place not in self.made:
            os.makedirs(place, exist_ok=True)
            self.made.add(place)
        if content is None or (self.shape.hollow and path.startswith("state/")):
            self._put(f"{place}/{name}", content)
            if state and self.shape.spark_checksums:
                self._put(f"{place}/{name}.crc", None)
            if self.shape.hadoop_checksums:
                self._put(f"{place}/.{name}.crc", None)
            return
        names = {name: content}
        if state and self.shape.spark_checksums:
            said = {"algorithm": "CRC32C", "value": _crc32c(content), "mainFileSize": len(content)}
            names[f"{name}.crc"] = json.dumps(said).encode()
        for name, text in names.items():
            _write(f"{place}/{name}", text)
            if self.shape.hadoop_checksums:
                _write(f"{place}/.{name}.crc", _hadoop(text))

    def _put(self, path: str, content: bytes | None) -> None:
        if content is None:
            self.empty.link(path)
        else:
            _write(path, content)

    def logs(self) -> None:
        shape = self.shape
        last = shape.first + shape.batches
        committed = shape.batches if shape.committed is None else shape.committed
        for n in range(shape.first, last):
            meta = {
                "batchWatermarkMs": n * 60_000,
                "batchTimestampMs": 1_000 + n,
                "conf": {"spark.sql.shuffle.partitions": str(shape.partitions)},
            }
            offsets = json.dumps({"visits": {"0": n, "1": 2 * n}})
            source = "0:" if shape.offsets == "v2" else ""
            text = f"{shape.offsets}\n{json.dumps(meta)}\n{source}{offsets}"
            self.write(f"offsets/{n}", text.encode())
        for n in range(shape.first, shape.first + committed):
            self.write(f"commits/{n}", self._commit(n).encode())

    def _commit(self, n: int) -> str:
        if not self.shape.layout.startswith("v2"):
            return 'v1\n{"nextBatchWatermarkMs":5}'
        ids = {
            str(operator): [
                [self.id(operator, partition, store, n + 1) for store in self.shape.stores]
                for partition in range(self.shape.partitions)
            ]
            for operator in range(self.shape.operators)
        }
        return f"v2\n{json.dumps({'nextBatchWatermarkMs': 5, 'stateUniqueIds': ids})}"

    def id(self, operator: int, partition: int, store: str, version: int) -> str:
        seed = self.shape.seed
        return str(uuid.uuid5(_NAMES, f"{seed}/{operator}/{partition}/{store}/{version}"))

    def operator(self, operator: int) -> None:
        shape = self.shape
        if shape.operator_metadata is not None:
            info = {
                "operatorInfo": {"operatorId": operator, "operatorName": "stateStoreSave"},
                "stateStoreInfo": [
                    {"storeName": store, "numPartitions": shape.partitions}
                    for store in shape.stores
                ],
            }
            text = f"{shape.operator_metadata}\n{json.dumps(info)}".encode()
            if shape.operator_metadata == "v1":
                self.write(f"state/{operator}/_metadata/metadata", text)
            else:
                for n in (shape.first, shape.first + shape.batches // 2):
                    self.write(f"state/{operator}/_metadata/v2/{n}", text)
                    schema = (
                        f"state/{operator}/_stateSchema/default/{n}_{uuid.uuid5(_NAMES, str(n))}"
                    )
                    self.write(schema, b"schema")
        for partition in range(shape.partitions):
            for store in shape.stores:
                self.store(operator, partition, store)

    def store(self, operator: int, partition: int, store: str) -> None:
        shape = self.shape
        place = f"state/{operator}/{partition}"
        place += "" if store == "default" else f"/{store}"
        last = shape.first + (shape.batches if shape.committed is None else shape.committed)
        oldest = max(1, shape.first)
        for version in range(oldest, last + 1):
            whole = (version - oldest) % shape.snapshot_every == 0 and version > 1
            whole = whole or version == oldest > 1
            self.version(place, version, whole, (operator, partition, store))
        if partition == 0:
            self.write(f"{place}/_metadata/schema", b"v2 schema")

    def version(self, place: str, version: int, whole: bool, key: tuple[int, int, str]) -> None:
        layout = self.shape.layout
        is_hollow = version <= self.shape.hollow
        content = f"{self.shape.seed} {key} {version}".encode()
        named = f"{version}"
        if layout.startswith("v2"):
            named = f"{version}_{self.id(*key, version)}"
        if layout == "hdfs":
            self.write(f"{place}/{version}.delta", None if is_hollow else content, state=True)
            if whole:
                snapshot = None if is_hollow else content * 3
                self.write(f"{place}/{version}.snapshot", snapshot, state=True)
            return
        if layout in ("changelog", "v2") and is_hollow:
            self.write(f"{place}/{named}.changelog", None, state=True)
        elif layout == "changelog":
            self.write(f"{place}/{named}.changelog", _lz4(b"changes " + content), state=True)
        elif layout == "v2":
            lineage = [
                {"version": v, "checkpointUniqueId": self.id(*key, v)}
                for v in range(max(1, version - self.shape.snapshot_every), version)
            ]
            text = _java("v4") + _java(json.dumps(lineage)) + content
            self.write(f"{place}/{named}.changelog", _lz4(text), state=True)
        if whole or layout in ("rocksdb", "v2-zips"):
            # two files that every snapshot of its hundred shares, and one of its own
            names = [f"{version // 100 * 100 + n:06d}" for n in (1, 2)] + [f"{version:06d}x"]
            self.zip(f"{place}/{named}.zip", place, names, is_hollow=is_hollow)

    def zip(self, path: str, place: str, names: list[str], *, is_hollow: bool) -> None:
        listed = []
        for name in names:
            sst = f"{name}-{uuid.uuid5(_NAMES, f'{self.shape.seed}{place}{name}')}.sst"
            content = f"sst {self.shape.seed} {name}".encode() * 5
            if (shared := f"{place}/SSTs/{sst}") not in self.shared:
                self.shared.add(shared)
                # the last one is of this snapshot alone
                self.write(shared, None if is_hollow and name is names[-1] else content)
            listed.append(
                {"localFileName": f"{name}.sst", "dfsSstFileName": sst, "sizeBytes": len(content)}
            )
        if is_hollow:
            self.write(path, None, state=True)
            return
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            info = zipfile.ZipInfo("metadata", (2026, 1, 1, 0, 0, 0))
            archive.writestr(info, "v1\n" + json.dumps({"sstFiles": listed, "numKeys": 1}))
            archive.writestr(zipfile.ZipInfo("MANIFEST-1", (2026, 1, 1, 0, 0, 0)), b"manifest")
        self.write(path, buffer.getvalue(), state=True)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file but our own notes."""
    found = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != ".ebbtide"]
        below = place[len(str(folder)) + 1 :]
        for name in files:
            with open(f"{place}/{name}", "rb") as file:
                found[f"{below}/{name}" if below else name] = file.read()
    return found


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def _hadoop(content: bytes) -> bytes:
    chunks = (content[start : start + 512] for start in range(0, len(content), 512))
    sums = b"".join(struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"crc\x00" + struct.pack(">I", 512) + sums


def _crc32c(content: bytes) -> int:
    import google_crc32c

    (signed,) = struct.unpack(">i", struct.pack(">I", google_crc32c.value(content)))
    return int(signed)


def _java(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _lz4(content: bytes) -> bytes:
    """As lz4-java writes a block that does not compress, then the end."""
    block = b"LZ4Block" + struct.pack("<BiiI", 0x16, len(content), len(content), 0) + content
    return block + b"LZ4Block" + struct.pack("<BiiI", 0x16, 0, 0, 0)


@contextmanager
def in_the_way_of(notes: Path) -> Iterator[None]:
    """A file where our folder was: as on a disk that is full for a while, no note can be written.

    Permissions would not do, as tests may run as root.
    """
    aside = notes.with_name("aside")
    notes.rename(aside)
    _instead_of_a_new_one(notes, lambda: notes.touch(exist_ok=False))
    try:
        yield
    finally:
        notes.unlink()
        _instead_of_a_new_one(notes, lambda: aside.rename(notes))


def _instead_of_a_new_one(notes: Path, put: Callable[[], object]) -> None:
    """The thread that renews a lease may make the folder again while it is away."""
    while True:
        with suppress(OSError):
            put()
            return
        shutil.rmtree(notes)
