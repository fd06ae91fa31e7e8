"""What `ebbtide check` refuses before it starts Spark, each in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.trees import Shape, make


@pytest.mark.parametrize(
    ("query", "problem", "code"),
    [
        ("job.py", "job.py names no function and no pipeline. Write it as job.py:build", 2),
        ("job.py:", "job.py: names no function and no pipeline. Write it as job.py:build", 2),
        (":build", ":build names no file. Write it as path/to/file.py:build", 2),
        ("absent.py:build", "There is no file absent.py.", 2),
        ("broken.py:build", "broken.py is not Python: ", 2),
    ],
)
def test_code_that_cannot_be_read(
    cli: Cli, tmp_path: Path, query: str, problem: str, code: int
) -> None:
    make(tmp_path / "checkpoint", Shape())
    (tmp_path / "broken.py").write_text("def build(:\n")
    answer = cli("check", "checkpoint", query, cwd=tmp_path, COLUMNS="200")
    assert answer.returncode == code
    assert problem in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_no_checkpoint_yet(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("def build(spark): ...\n")
    answer = cli("check", "absent", "job.py:build", cwd=tmp_path, COLUMNS="300")
    assert answer.returncode == 1
    assert "There is no checkpoint at absent yet, so any query can start there." in answer.stderr
    assert "for the first deploy, add --allow-missing" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_a_file_is_never_a_checkpoint_to_come(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("def build(spark): ...\n")
    answer = cli("check", "job.py", "job.py:build", "--allow-missing", cwd=tmp_path)
    assert answer.returncode == 1
    assert "job.py is a file, not a checkpoint." in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_a_folder_of_something_else_is_never_a_checkpoint_to_come(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("def build(spark): ...\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "part-0.parquet").write_text("")
    answer = cli("check", "data", "job.py:build", "--allow-missing", cwd=tmp_path)
    assert answer.returncode == 1
    assert "data is not a checkpoint: it has no file 'metadata'" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
