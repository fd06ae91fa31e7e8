"""What `-o json` prints is what the schemas in the documentation say."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ebbtide.checks import PartVerdict
from ebbtide.compatibility import CompatibilityReport
from ebbtide.connectors import SinkPlace
from ebbtide.connectors.base import SinkEvidence
from ebbtide.history.store import write_entry
from ebbtide.storage import open_folder
from scripts import schemas
from tests.conftest import Cli
from tests.histories import believable
from tests.trees import Shape, make

REWIND = ("--to-batch", "5", "--sink", "none")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = make(tmp_path / "checkpoint", Shape(layout="rocksdb", operator_metadata="v1"))
    for entry in believable(5):  # of the last two batches, only what the logs hold is known
        write_entry(open_folder(str(folder)), entry)
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))  # long ago, so the query counts as stopped
    return folder


def closed(schema: Any) -> Any:
    """The schema without room for a field that it does not name."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(value) for name, value in schema.items()}
    return inner if "properties" not in inner else {**inner, "additionalProperties": False}


def require_valid(name: str, output: str) -> None:
    schema = json.loads((schemas.FOLDER / f"{name}.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(closed(schema))
    problems = [f"{e.json_path}: {e.message}" for e in validator.iter_errors(json.loads(output))]
    assert problems == []


@pytest.mark.parametrize("name", schemas.SCHEMAS)
def test_a_schema_is_that_of_the_code(name: str) -> None:
    written = (schemas.FOLDER / f"{name}.json").read_text("utf-8")
    assert written == schemas.render_schema(name), "Type: python -m scripts.schemas"


def test_there_is_no_other_schema() -> None:
    assert {path.stem for path in schemas.FOLDER.iterdir()} == set(schemas.SCHEMAS)


def outputs(cli: Cli, checkpoint: Path) -> Iterator[tuple[str, str]]:
    """The name of a schema, and what a command prints, in an order that works."""
    new = checkpoint.parent / "new"
    for name, words in (
        ("inspect", ("inspect", checkpoint)),
        ("verify", ("verify", checkpoint)),
        ("history", ("history", checkpoint)),
        ("offsets", ("offsets", checkpoint)),
        ("fork", ("fork", checkpoint, new, "--at-batch", "3")),
        ("plan", ("plan", checkpoint, "--since", "1970-01-01T00:00:01")),
        ("rewind-plan", ("rewind", checkpoint, *REWIND)),
        ("backup", ("rewind", checkpoint, *REWIND, "--execute", "--yes")),
        ("backups", ("backups", checkpoint)),
        ("history", ("history", checkpoint)),
        ("backup", ("undo", checkpoint, "--yes", "--assume-stopped")),
    ):
        answer = cli(*words, "-o", "json")
        assert answer.stdout, answer.stderr
        yield name, answer.stdout


def test_outputs_are_valid(inside: Cli, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_HOME", str(checkpoint.parent / "home"))
    for name, output in outputs(inside, checkpoint):
        require_valid(name, output)


def test_a_saved_plan_is_valid(inside: Cli, checkpoint: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    inside("rewind", checkpoint, *REWIND, "--save-plan", plan, "--home", tmp_path)
    require_valid("rewind-plan", plan.read_text("utf-8"))


def test_values_that_take_spark_or_a_sink_are_valid() -> None:
    part = PartVerdict.breaks("sources", "1 in the checkpoint, 2 in the query")
    report = CompatibilityReport("/ckpt", 7, "4.2.0", (part,), ("filters",), ("ebbtide offsets",))
    require_valid("check", json.dumps(report.to_dict()))
    found = SinkEvidence(SinkPlace("delta", "visits", "/visits"), SinkEvidence.CERTAIN, "", 5)
    require_valid("sinks", json.dumps([found.to_dict()]))


@pytest.mark.parametrize("layout", ["none", "hdfs", "changelog", "v2"])
def test_other_checkpoints_are_valid(inside: Cli, tmp_path: Path, layout: str) -> None:
    folder = make(tmp_path / "checkpoint", Shape(layout, committed=6, first=2))
    for command in ("inspect", "verify", "history"):
        answer = inside(command, folder, "-o", "json")
        require_valid(command, answer.stdout)
