"""What the documents say runs: every Python block, every ebbtide command, every link."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

import ebbtide
from ebbtide import Pipeline
from ebbtide.compatibility import CompatibilityReport
from ebbtide.config import load_settings
from ebbtide.connectors.kafka import Record
from ebbtide.notes import write_note
from ebbtide.storage import open_writable
from scripts.reference import list_commands
from tests.conftest import Cli
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
    text = document.read_text("utf-8")
    fenced = re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", text, re.DOTALL | re.M)
    return [re.sub(f"^{i}", "", block, flags=re.M) for i, name, block in fenced if name == language]


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
    command = re.compile(r"(?:^|\| |\$ |\$\()ebbtide (\w+)", re.M)
    typed = [*blocks(document, ""), *blocks(document, "console")]
    assert {word for block in typed for word in command.findall(block)} <= set(COMMANDS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_targets_and_modules_exist(document: Path) -> None:
    """Of `make …` and `python -m …`, between fences and in prose."""
    text = document.read_text("utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    assert set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)(?![^\s`])", text, re.M)) <= targets
    for module in re.findall(r"python3? -m ((?:ebbtide|tests|scripts|benchmarks)[\w.]*)", text):
        assert find_spec(module.rstrip(".")) is not None, module


LANGUAGES = {"", "console", "properties", "py", "python", "text", "toml", "yaml"}
"""For each, a test runs or parses what stands between such fences."""


def test_no_fence_has_a_language_without_a_test() -> None:
    used = {
        name
        for document in DOCUMENTS
        for name in re.findall(r"^ *```(\w+)$", document.read_text("utf-8"), re.M)
    }
    assert used <= LANGUAGES


def test_what_the_page_about_checks_shows() -> None:
    """Its query needs Spark, which tests/spark/test_check.py has; here, that its names exist."""
    page = ROOT / "docs" / "guide" / "check.md"
    query, call = blocks(page, "py")
    compile(query, page.name, "exec")
    names: dict[str, Any] = {"ebbtide": ebbtide, "build": None}
    for expression in ast.walk(ast.parse(call)):
        if isinstance(expression, ast.Call):
            function = eval(ast.unparse(expression.func), names)
            inspect.signature(function).bind(*expression.args)
    used = re.findall(r"report\.(\w+)", call)
    assert used
    assert all(hasattr(CompatibilityReport, n) or n in _fields(CompatibilityReport) for n in used)
    (flag,) = re.findall(r"# (\w+)=True", call)
    assert flag in inspect.signature(ebbtide.check).parameters
    (step,) = yaml.safe_load(blocks(page, "yaml")[0])
    action = ROOT / step["uses"].partition("ebbtide/")[2].partition("@")[0] / "action.yml"
    inputs = yaml.safe_load(action.read_text("utf-8"))["inputs"]
    assert set(step["with"]) <= set(inputs)
    assert {name for name, each in inputs.items() if each.get("required")} <= set(step["with"])


def _fields(kind: type) -> set[str]:
    return set(inspect.get_annotations(kind))


def test_prometheus_asks_where_the_runs_serve() -> None:
    page = ROOT / "docs" / "production" / "metrics.md"
    config = yaml.safe_load(blocks(page, "yaml")[0])
    (job,) = config["scrape_configs"]
    asked = {target for each in job["static_configs"] for target in each["targets"]}
    served = re.findall(r"--metrics-port (\d+)", blocks(page, "")[0])
    assert asked == {f"127.0.0.1:{port}" for port in served}


def test_the_settings_file_that_is_shown_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(ROOT / "docs" / "production" / "kafka.md", "toml")
    Path("ebbtide.toml").write_text(block)
    Path("client.properties").write_text("bootstrap.servers=127.0.0.1:9\n")
    found = load_settings(environ={})
    assert found.kafka_config == str(Path("client.properties").absolute())


LIGHT = {
    *("apply", "backups", "fork", "history", "inspect", "offsets", "rewind", "sinks", "undo"),
    "verify",
}
NEEDS = ("--bootstrap-servers", "--plot", "--rebuild", "--search", "--sink-", "--to-event-time")
"""With these, a command also needs a broker, a sink or a history; tests of its own have them."""


@pytest.mark.parametrize("page", ["history", "offsets", "replay", "rewind", "sinks", "sources"])
def test_the_commands_of_the_guide_run_as_they_are_written(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: Cli
) -> None:
    """In order, on a checkpoint whose sink is known; what needs no Spark, no broker and no sink."""
    monkeypatch.chdir(tmp_path)
    place = ".ebbtide/checkpoints/visits-counter"
    checkpoint = make(tmp_path / place, Shape(layout="rocksdb", first=38, batches=7))
    sink = {"kind": "kafka", "name": "topic counts"}
    owner = {"pipeline": "visits-counter", "sink": sink, "location": str(checkpoint)}
    write_note(open_writable(str(checkpoint)), "pipeline.json", owner)
    for path in checkpoint.rglob("*"):
        os.utime(path, (0, 0))  # long ago, so the query counts as stopped
    typed = [
        line for block in blocks(ROOT / f"docs/guide/{page}.md", "") for line in block.splitlines()
    ]
    ran = 0
    for line in typed:
        words = shlex.split(re.split(r"  +#| > ", line)[0])
        if words[:1] != ["ebbtide"] or words[1] not in LIGHT or any(n in line for n in NEEDS):
            continue
        if "# or " in line:  # instead of the line before
            assert inside("undo", place, "--yes").returncode == 0
        # batches 5 to 12 of the pages are 41 and 42 here
        filled_in = {"CKPT": place, "NEW": f"new-{ran}", "second": f"second-{ran}", "5": "41"}
        said = inside(*(filled_in.get(word, word) for word in words[1:]), *_yes(words))
        assert said.returncode == 0, (line, said.stderr)
        ran += 1
    assert ran


def _yes(words: list[str]) -> list[str]:
    """The answer of who types it in a terminal."""
    asks = "--execute" in words or "--prune" in words or words[1] in ("apply", "undo")
    return ["--yes"] if asks else []


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
