"""What the documents say runs: every Python block, every ebbtide command, every link."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from ebbtide import Pipeline
from ebbtide.connectors.kafka import Record
from scripts.reference import list_commands
from tests.trees import Shape, make
from tests.unit.test_surface import COMMANDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
API = ROOT / "docs" / "guide" / "api.md"
YOUR_OWN_JOB = ROOT / "docs" / "start" / "your-own-job.md"
PLAIN = [path for path in DOCUMENTS if path not in (API, YOUR_OWN_JOB)]
"""The blocks of the others run below, and with Spark in tests/e2e/test_attach.py."""


def blocks(document: Path, language: str) -> list[str]:
    """What stands between fences, of one language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text("utf-8"), re.DOTALL | re.M)
    return [block for name, block in fenced if name == language]


@pytest.mark.parametrize(
    "document",
    PLAIN,
    ids=lambda path: path.name,
)
def test_python_blocks_define_pipelines(document: Path) -> None:
    for block in blocks(document, "python"):
        names: dict[str, object] = {}
        exec(compile(block, document.name, "exec"), names)
        if document.name == "sinks.md":  # the next test runs it
            continue
        assert any(isinstance(value, Pipeline) for value in names.values())


def test_the_api_page_rewinds_undoes_and_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its blocks run one after the other, on the checkpoint that they name."""
    checkpoint = make(tmp_path / "checkpoint", Shape(layout="rocksdb", operator_metadata="v1"))
    for path in checkpoint.rglob("*"):
        os.utime(path, (0, 0))  # long ago, so the query counts as stopped
    monkeypatch.chdir(tmp_path)
    rewind, undo, fork, pipelines = blocks(API, "python")
    for block in (rewind, undo, fork, pipelines):
        exec(compile(block, API.name, "exec"), {})
        if block == rewind:
            assert not (checkpoint / "commits/5").exists()
    shown = capsys.readouterr().out
    assert "last committed batch: 6" in shown
    assert "first batch to run again: 5 " in shown
    assert (checkpoint / "commits/6").exists()
    assert (tmp_path / "second/offsets/3").exists()
    assert not (tmp_path / "second/commits/3").exists()


def test_a_reader_sees_through_a_replay() -> None:
    names: dict[str, Any] = {}
    (block,) = blocks(ROOT / "docs" / "guide" / "sinks.md", "python")
    exec(block, names)

    def record(timeline: str, key: str, value: str) -> Record:
        headers = (("ebbtide-timeline", timeline.encode()),)
        return Record("t", 0, 0, 0, key.encode(), value.encode(), headers)

    written = [
        *(record("origin", key, value) for key, value in (("7h", "1"), ("8h", "2"), ("9h", "3"))),
        *(record("again", key, value) for key, value in (("8h", "2"), ("9h", "4"), ("10h", "5"))),
    ]
    assert [r.value for r in names["news"](written)] == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize(
    ("document", "system"),
    [
        ("stream-reprocessor.md", "stream_reprocessor"),
        ("batch-reprocessor.md", "batch_reprocessor"),
        ("micro-batch.md", "micro_batch"),
        ("browser-stats.md", "browser_stats"),
        ("early-writer.md", "early_writer"),
    ],
)
def test_a_job_that_is_shown_is_the_job(document: str, system: str) -> None:
    source = (ROOT / "src" / "ebbtide" / "systems" / system / "pipeline.py").read_text("utf-8")
    (block,) = blocks(ROOT / "docs" / "systems" / document, "python")
    assert source.replace("  # noqa: N812", "").endswith(block)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_exist(document: Path) -> None:
    command = re.compile(r"(?:^|\| )ebbtide (\w+)", re.M)
    used = {word for block in blocks(document, "") for word in command.findall(block)}
    assert used <= set(COMMANDS)


def typed_commands(document: Path) -> list[list[str]]:
    """The words of each `ebbtide …` between fences and in prose, without comments."""
    text = document.read_text("utf-8").replace("\\\n", " ")
    fenced = re.findall(r"^ *```(?:console)?\n(.*?)^ *```$", text, re.DOTALL | re.M)
    lines = [line for block in fenced for line in block.splitlines()]
    lines += re.findall(
        r"`(ebbtide [^`]+)`", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.M)
    )
    typed = (re.search(r"(?:^\s*|\$ |\| |`)(ebbtide .*)", line) for line in lines)
    return [re.split(r"  +#", match[1])[0].split() for match in typed if match]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_options_exist(document: Path) -> None:
    commands = list_commands()
    for words in typed_commands(document):
        command = commands.get(" ".join(words[:2])) or commands.get(" ".join(words[:3]))
        if command is None:  # a group, or a name in a sentence
            continue
        options = {o for each in command.params for o in (*each.opts, *each.secondary_opts)}
        options.add("--help")
        used = {word.partition("=")[0].rstrip(".,;:)") for word in words if word.startswith("--")}
        assert used <= options, words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_on_a_cluster_name_a_home_that_it_reaches(document: Path) -> None:
    lines = [line for block in blocks(document, "") for line in block.splitlines()]
    for line in lines:
        if re.match(r"ebbtide (run|archive|replay|reprocess) .*--master (?!local)", line):
            assert re.search(r"--home \S+://", line), line


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_command_has_a_secret_in_it(document: Path) -> None:
    assert "--from-literal" not in document.read_text("utf-8")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text("utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_every_decision_is_one_page_and_numbered() -> None:
    records = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [int(path.name[:3]) for path in records] == list(range(1, len(records) + 1))
    for path in records:
        assert len(path.read_text("utf-8").splitlines()) <= 60


def test_no_registry_is_named() -> None:
    host = re.compile(r"https?://[a-z0-9.-]*(pypi|pythonhosted|maven|npmjs)[a-z0-9.-]*/", re.I)
    for path in [*ROOT.glob("requirements/*"), *ROOT.glob("src/**/*.*"), *DOCUMENTS]:
        if path.suffix in (".txt", ".py", ".xml", ".lock", ".md"):
            assert not host.search(path.read_text("utf-8")), path


def test_the_tour_of_the_documentation_is_the_one_that_is_tested() -> None:
    """tests/e2e/walks/test_readme.py types the commands of the README."""
    tour = (ROOT / "README.md").read_text("utf-8").split("\n## Five minutes\n")[1].split("\n## ")[0]
    shown = blocks(ROOT / "docs" / "start" / "five-minutes.md", "")
    assert shown == re.findall(r"^```\n(.*?)^```$", tour, re.DOTALL | re.MULTILINE)
