"""A project as `ebbtide new` makes it: its own tests, and a run on the real broker."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from tests.conftest import Cli
from tests.e2e.conftest import QUICK_START
from tests.unit.test_surface import COMMANDS


def make_test(
    project: Path, *options: str, flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """`make test` as typed in a fresh terminal, whatever runs us; `options` are pytest's."""
    ours = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "PYTHON", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(
        ["make", "test", *flags],
        cwd=project,
        env={**environment, "PYTEST_ADDOPTS": " ".join(options)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_new_project_tests_itself_and_finds_a_bug(cli: Cli, tmp_path: Path) -> None:
    answer = cli("new", "demo", "-o", "json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    made = json.loads(answer.stdout)
    project = Path(made["folder"])
    assert (made["name"], project) == ("demo", tmp_path / "demo")
    assert sorted(made["files"]) == sorted(f"demo/{file.name}" for file in project.iterdir())
    assert "Next: cd demo && make test" in answer.stderr
    right = make_test(project)
    assert right.returncode == 0, right.stdout + right.stderr
    assert "3 passed" in right.stdout
    without = make_test(project, flags=("PYTHON=false",))
    assert without.returncode != 0
    assert "The tests need pytest. Type: false -m pip install pytest" in without.stderr
    pipeline = project / "pipeline.py"
    text = pipeline.read_text("utf-8")
    pipeline.write_text(text.replace('"event_time", "10 minutes"', '"event_time", "1 hour"'))
    assert pipeline.read_text("utf-8") != text
    wrong = make_test(project, "-k", "batch")
    assert wrong.returncode != 0
    assert "1 failed" in wrong.stdout, wrong.stdout + wrong.stderr


@pytest.mark.usefixtures("one_jvm")
def test_a_new_project_runs(
    inside: Cli, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(settings.home)
    assert inside("new", "clicks").returncode == 0
    monkeypatch.chdir("clicks")
    kafka.create_missing_topics(settings.kafka, ["clicks-events"])
    with kafka.Sender(settings.kafka, "clicks-events") as sender:
        for minute in ("00", "09", "30"):
            event = {"event_time": f"2026-01-05T10:{minute}:00", "page": "home"}
            sender.send(json.dumps(event).encode())
    where = ("--home", settings.home, "--bootstrap-servers", settings.kafka.address)
    run = ("run", "pipeline.py:pipeline", "--available-now", *where, *QUICK_START)
    answer = inside(*run)
    assert answer.returncode == 0, answer.stderr
    retained = kafka.retained_offsets(settings.kafka, "clicks-counts")
    start, end = dict.fromkeys(retained, 0), {p: last for p, (_, last) in retained.items()}
    [found] = kafka.consume_range(settings.kafka, "clicks-counts", start, end)
    assert found.key == b'{"start":"2026-01-05T10:00:00.000Z","page":"home"}'
    assert json.loads(found.value or b"")["count"] == 2


def test_what_is_refused_and_what_the_readme_says(
    inside: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("two words", "a/b", "..", "-", "x" * 65):
        refused = inside("new", "--", name)
        assert refused.returncode == 2
        assert f"{name!r} is not a name for a project. Use letters" in refused.stderr
    (tmp_path / "empty").mkdir()
    assert inside("new", "empty").returncode == 0
    before = sorted(tmp_path.rglob("*"))
    again = inside("new", "empty")
    assert again.returncode == 2
    assert f"{tmp_path / 'empty'} exists and is not an empty folder." in again.stderr
    assert sorted(tmp_path.rglob("*")) == before
    for file in (tmp_path / "empty").iterdir():
        assert "{{" not in file.read_text("utf-8")
    readme = (tmp_path / "empty" / "README.md").read_text("utf-8")
    used = set(re.findall(r"(?:^|\| )ebbtide (\w+)", readme, re.MULTILINE))
    assert used <= set(COMMANDS)
    assert {"run", "archive", "reprocess", "rewind"} <= used
