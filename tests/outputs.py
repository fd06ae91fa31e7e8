"""What a query has written: a real Delta table, or the folder and the log of a file sink."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

QUERY = "7b3c"
"""The id that `tests.trees.make` gives a query."""
_HIVE, _URI = "\"#%'*/:=?\\{[]^", ' "#%<>?\\^`{|}'
"""What Spark escapes in the folder of a partition, and then once more in the log."""


def write_batches(
    table: Path, batches: Iterable[int], by: str | None = QUERY, **properties: str
) -> None:
    """One commit a batch, noted as Spark's sink notes it; two rows each."""
    for batch in batches:
        noted = [] if by is None else [Transaction(by, batch)]
        rows = pa.table({"row": [f"{by} {batch} {n}" for n in range(2)]})
        write_deltalake(
            str(table),
            rows,
            mode="append",
            configuration={f"delta.{name}": value for name, value in properties.items()},
            commit_properties=CommitProperties(app_transactions=noted),
        )


def write_partitions(table: Path, batches: Iterable[int], values: Iterable[str | None]) -> None:
    """A row a batch for each value, partitioned by it, under the names that Spark gives files."""
    values = list(values)
    for batch in batches:
        rows = pa.table({"row": [f"{batch} {v}" for v in values], "p": pa.array(values, "string")})
        noted = CommitProperties(app_transactions=[Transaction(QUERY, batch)])
        write_deltalake(
            str(table), rows, mode="append", partition_by=["p"], commit_properties=noted
        )
    for commit in (table / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for file in (action["add"] for action in actions if "add" in action):
            name, value = file["path"].rpartition("/")[2], file["partitionValues"]["p"]
            folder = f"p={_escape(value or '__HIVE_DEFAULT_PARTITION__', _HIVE)}"
            (table / folder).mkdir(exist_ok=True)
            (table / unquote(file["path"])).rename(table / folder / name)
            file["path"] = f"{_escape(folder, _URI)}/{name}"
        commit.write_text("\n".join(map(json.dumps, actions)) + "\n")


def _escape(text: str, characters: str) -> str:
    return "".join(quote(c, safe="") if c in characters else c for c in text)


def rows_of(table: Path) -> list[str]:
    """What a reader sees."""
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["row"].to_pylist())


def written(batches: Iterable[int], by: str | None = QUERY) -> list[str]:
    """What `write_batches` wrote."""
    return sorted(f"{by} {batch} {n}" for batch in batches for n in range(2))


def write_files(folder: Path, batches: Iterable[int], by: str = "old", every: int = 10) -> None:
    """The data files and the log of a file sink; each tenth entry holds all that came before."""
    log = folder / "_spark_metadata"
    log.mkdir(parents=True, exist_ok=True)
    for batch in batches:
        lines = []
        for n in range(2):
            # partitioned, and with a character that Spark escapes in its log
            data = folder / f"day={batch % 2} x" / f"part-{by}-{batch}-{n}.json"
            data.parent.mkdir(exist_ok=True)
            data.write_text(f"{by} {batch} {n}")
            (data.parent / f".{data.name}.crc").write_text("sum")
            lines.append(json.dumps({"path": data.as_uri(), "size": 1, "action": "add"}))
        name = str(batch)
        if (batch + 1) % every == 0:
            name += ".compact"
            lines = [*_lines_before(log, batch), *lines]
        (log / name).write_text("\n".join(["v1", *lines]))
        (log / f".{name}.crc").write_text("sum")


def _lines_before(log: Path, batch: int) -> list[str]:
    """As Spark reads it: from the last entry that holds all before it."""
    wholes = [n for n in range(batch) if (log / f"{n}.compact").exists()]
    first = wholes[-1] if wholes else 0
    names = [f"{n}.compact" if n in wholes else str(n) for n in range(first, batch)]
    return [line for name in names for line in (log / name).read_text().splitlines()[1:]]


def shown(folder: Path) -> list[str]:
    """What a reader of the sink's log sees."""
    log = folder / "_spark_metadata"
    ids = [int(path.name.split(".")[0]) for path in log.glob("[0-9]*")]
    lines = _lines_before(log, max(ids, default=-1) + 1)
    paths = [unquote(json.loads(line)["path"]).removeprefix("file://") for line in lines]
    return sorted(Path(path).read_text() for path in paths)
