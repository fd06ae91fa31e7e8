"""State: changelogs, RocksDB snapshots, schemas, operators' metadata, names of files, checksums."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import cramjam

from ebbtide.checkpoint import layout, verification
from ebbtide.checkpoint.chain import listed_files
from ebbtide.checkpoint.changelog import read_lineage
from ebbtide.checkpoint.state_files import Store, find_operators, has_no_key, read_versions
from ebbtide.compatibility import schemas
from ebbtide.compatibility.operators import OperatorState, guess_name, read_operators
from ebbtide.storage import Listing, open_folder
from tests.fuzz.seeds import choose, parts, spread
from tests.fuzz.target import Target, scratch, to_text

_LINEAGE = json.dumps([{"version": n, "checkpointUniqueId": f"{n:08x}-0-4"} for n in range(1, 4)])


def _java(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _changelogs() -> list[bytes]:
    plain = _java("v3") + _java(_LINEAGE) + b"\0\0\0\2ab" * 9
    packed = bytes(cramjam.lz4.compress_block(plain, store_size=False))
    blocks = (
        b"LZ4Block" + struct.pack("<BiiI", token, len(block), length, 0) + block
        for token, block, length in (
            (0x26, packed, len(plain)),
            (0x16, plain[:40], 40),
            (0x16, plain[40:], len(plain) - 40),
        )
    )
    one, two, three = blocks
    raw = bytes(cramjam.snappy.compress_raw(plain))
    return [
        one,
        two + three + b"LZ4Block" + struct.pack("<BiiI", 0x16, 0, 0, 0),
        bytes(cramjam.zstd.compress(plain)),
        b"\x28\xb5\x2f\xfd\x00\x40"
        + b"".join(
            (len(part) << 3 | (at == 1)).to_bytes(3, "little") + part
            for at, part in enumerate((plain[:30], plain[30:]))
        ),
        b"\x82SNAPPY\x00" + b"\0\0\0\1\0\0\0\1" + struct.pack(">i", len(raw)) + raw,
        b"\x28\xb5\x2f\xfd\x00\x40" + b"".join(b"\x08\0\0" + plain[n : n + 1] for n in range(200)),
        *choose(lambda path: path.endswith(".changelog")),
    ]


def _read_changelog(data: bytes) -> None:
    for version, unique_id in read_lineage(io.BytesIO(data)).items():
        read_versions(("1_a.zip", "2_a.changelog")).find(layout.DELTA, version, [unique_id])


def _read_snapshot(data: bytes) -> None:
    folder = scratch() / "snapshot"
    folder.mkdir(exist_ok=True)
    (folder / "7.zip").write_bytes(data)
    _list_files()


_STORE = Store(0, 0, "default", "snapshot", read_versions(("7.zip",)))


def _list_files() -> None:
    tree = {"snapshot": Listing(("7.zip",))}
    for path, size in listed_files(open_folder(str(scratch())), tree, _STORE, "7.zip"):
        assert ".." not in path.split("/")
        assert size >= 0


def _read_snapshot_metadata(data: bytes) -> None:
    """The text inside of the zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("metadata", data)
    folder = scratch() / "snapshot"
    folder.mkdir(exist_ok=True)
    (folder / "7.zip").write_bytes(buffer.getvalue())
    _list_files()


def _zips() -> list[bytes]:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata", b"v1\n" + bytes(1 << 20))
    return [*choose(lambda path: path.endswith(".zip")), buffer.getvalue()]


def _snapshot_metadata() -> list[bytes]:
    found = []
    for content in choose(lambda path: path.endswith(".zip")):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            found.append(archive.read("metadata"))
    logs = {"sstFiles": [], "logFiles": [{"dfsLogFileName": "9-a.log", "sizeBytes": 7}]}
    return [*spread(sorted(set(found))), b"v1\n" + json.dumps(logs).encode()]


def _read_schema(data: bytes) -> None:
    found = schemas.read_schema_file(data, "default")
    guess_name(found)
    operator = OperatorState(0, None, found)
    _ = operator.windows, operator.delays, operator.event_times, operator.is_closed_in_time
    for schema in found:
        schemas.show_fields(schema.key)
        schemas.explain_misfit(schema.key, schema.value)
        schemas.fits(schema.value, schema.key)


def _read_key(data: bytes) -> None:
    has_no_key(to_text(data))


_OPERATOR = {
    "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateExec"},
    "stateStoreInfo": [
        {
            "storeName": "default",
            "numColsPrefixKey": 0,
            "numPartitions": 2,
            "stateSchemaFilePaths": ["file:/c/state/0/_stateSchema/default/0_ab"],
        }
    ],
    "operatorPropertiesJson": json.dumps(
        {
            "timeMode": "NoTime",
            "outputMode": "Update",
            "stateVariables": [{"stateName": "n", "stateVariableType": "ValueState", "ttl": 1}],
        }
    ),
}


def _read_operator(data: bytes) -> None:
    place = scratch() / "operator" / "state" / "0" / "_metadata" / "v2"
    place.mkdir(parents=True, exist_ok=True)
    (place / "0").write_bytes(data)
    folder = open_folder(str(scratch() / "operator"))
    for operator in read_operators(folder, folder.scan()):
        _ = operator.label, operator.variables
    tree = {"state/0/0": Listing(("1.delta",))}
    for known in find_operators(tree, {0: to_text(data)}, {}):
        _ = known.name, known.first_missing(known.partitions or 0)


def _read_names(data: bytes) -> None:
    """The names in a store's folder."""
    names = tuple(sorted(set(os_names(data))))
    versions = read_versions(names)
    for version in (0, 1, 5, *versions.all[-1:]):
        versions.why_not(version)
        versions.files_above(version)
        layout.names_above(names, min(version, 10**17))
    versions.lacking({1: ["a"], 2: ["b", "a"]})
    for directory in ("", "offsets", "state/0/1"):
        layout.unknown_files(directory, names)


def os_names(data: bytes) -> list[str]:
    """Names as a disk may have them: anything but a slash and a NUL, up to 255 bytes."""
    cleaned = data.replace(b"/", b"").replace(b"\0", b"\n").split(b"\r")
    return [name[:255].decode("utf-8", "surrogateescape") for name in cleaned if name]


_NAMES = [
    b"\r".join(names)
    for names in (
        (b"1.delta", b"2.delta", b"2.snapshot", b"3.delta", b".3.delta.crc", b"5.delta"),
        (b"1_ab-1.zip", b"1_ab-1.zip.crc", b".1_ab-1.zip.crc", b"2_cd.changelog", b"10_a.zip"),
        (b".7.delta.4e1c.TID3.tmp", b"007.zip", b"a\nb.zip", b"123456789012345678.delta"),
    )
]


def _check_sum(data: bytes) -> None:
    """The checksum files of Hadoop and of Spark, in one: a zero byte apart."""
    hadoop, _, spark = data.partition(b"\0|")
    place = scratch() / "sums"
    place.mkdir(exist_ok=True)
    (place / "7.zip").write_bytes(b"content" * 100)
    (place / ".7.zip.crc").write_bytes(hadoop)
    (place / "7.zip.crc").write_bytes(spark)
    tree = {"sums": Listing((".7.zip.crc", "7.zip", "7.zip.crc"))}
    verification.check_file(open_folder(str(scratch())), tree, "sums/7.zip")


_SUM = b'{"algorithm":"CRC32C","value":-12345,"mainFileSize":700}'

TARGETS = (
    Target("changelog", _changelogs, _read_changelog, (ValueError,), share=60, largest=1 << 17),
    Target("snapshot", _zips, _read_snapshot, (ValueError,)),
    Target("snapshot-metadata", _snapshot_metadata, _read_snapshot_metadata, (ValueError,)),
    Target(
        "schema",
        lambda: choose(lambda path: path.endswith("/schema") or "_stateSchema" in parts(path)),
        _read_schema,
        schemas.UNREADABLE,
        share=60,
    ),
    Target(
        "schema-key",
        lambda: choose(lambda path: path.endswith("/schema")),
        _read_key,
        share=40,
    ),
    Target(
        "operator",
        lambda: [
            b"v2\n" + json.dumps(_OPERATOR).encode(),
            *choose(lambda path: path.endswith("_metadata/metadata") or "/_metadata/v2/" in path),
        ],
        _read_operator,
    ),
    Target("state-names", lambda: _NAMES, _read_names, share=30),
    Target(
        "checksums",
        lambda: [b"crc\0\0\0\2\0" + bytes(8) + b"\0|" + _SUM, b"crc\0\0\0\0\1\0|" + _SUM],
        _check_sum,
    ),
)
