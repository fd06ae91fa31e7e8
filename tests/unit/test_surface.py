"""The public names, the speed of the command line, and what it must not import."""

from __future__ import annotations

import ast
import json
import os
import re
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import ebbtide
from ebbtide.errors import pip_line
from tests.conftest import Cli
from tests.trees import Shape, make

COMMANDS = [
    "apply",
    "archive",
    "backups",
    "broker",
    "check",
    "completion",
    "consume",
    "demo",
    "doctor",
    "fork",
    "generate",
    "history",
    "inspect",
    "jobs",
    "new",
    "offsets",
    "plan",
    "produce",
    "replay",
    "reprocess",
    "retry",
    "rewind",
    "run",
    "sinks",
    "state",
    "ui",
    "undo",
    "verify",
    "warm",
]
HELPS = [
    ["--help"],
    *([command, "--help"] for command in COMMANDS),
    *(["broker", command, "--help"] for command in ("start", "stop", "status")),
    ["generate", "visits", "--help"],
    *(["state", command, "--help"] for command in ("show", "diff")),
    *(["warm", command, "--help"] for command in ("status", "stop")),
]


def test_public_names_are_pinned() -> None:
    assert sorted(ebbtide.__all__) == [
        "Console",
        "Delta",
        "EbbtideError",
        "Files",
        "ForeachBatch",
        "Kafka",
        "Pipeline",
        "Sessions",
        "apply_rewind",
        "attach",
        "check",
        "fork",
        "observe",
        "open_checkpoint",
        "plan_rewind",
        "read_offsets",
        "replay",
        "reprocess",
        "run",
        "undo_rewind",
    ]
    assert len(ebbtide.__all__) <= 20


def test_version_is_the_installed_one(cli: Cli) -> None:
    assert cli("--version").stdout.strip() == f"ebbtide {metadata.version('ebbtide')}"


def test_commands_are_pinned() -> None:
    from ebbtide.cli import app

    names = [c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands]
    for group in app.registered_groups:
        inner = group.typer_instance
        names.append(str(group.name or (inner.info.name if inner else "")))
    assert sorted(names) == COMMANDS


@pytest.mark.parametrize(
    ("command", "usage", "shown"),
    [
        ("inspect", "inspect [OPTIONS] CKPT", "CKPT Path or URL of the checkpoint."),
        ("check", "check [OPTIONS] CKPT QUERY", "QUERY A function of the Spark session"),
        ("ui", "ui [OPTIONS] [CKPT]...", "CKPT More checkpoints to list"),
        ("archive", "archive [OPTIONS] PIPELINE", "checkpoints/<table>-archive"),
    ],
)
def test_help_shows_no_types_of_python(command: str, usage: str, shown: str, inside: Cli) -> None:
    text = re.sub(r" +", " ", inside(command, "--help", COLUMNS="80").stdout)
    assert f"Usage: ebbtide {usage} " in text
    assert shown in text
    assert not re.search(r"<(str|int|float|bool|list|path)\b", text)


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "--help"]], ids=" ".join)
def test_help_answers_at_once(arguments: list[str]) -> None:
    """Side by side with the smallest program of the same library; pandas alone would double it."""
    ratios = []
    for _ in range(3):
        least = cpu_seconds("-c", SMALLEST, *arguments)
        ratios.append(cpu_seconds("-m", "ebbtide", *arguments) / least)
        if ratios[-1] < 2:
            break
    assert min(ratios) < 2, f"times the smallest program's CPU: {ratios}"


def test_light_commands_load_nothing_heavy(tmp_path: Path) -> None:
    """Which modules are loaded says more than the time that it takes on a busy machine."""
    checkpoint = str(make(tmp_path / "c", Shape("v2")))
    commands = [
        ["inspect", checkpoint, "-o", "json"],
        ["inspect", checkpoint],
        ["rewind", checkpoint, "--shift-by", "-1", "--sink", "none", "--assume-stopped"],
        ["history", checkpoint],
        ["backups", checkpoint],
    ]
    program = (
        "import sys\n"
        "from typer.main import get_command\n"
        "from ebbtide.cli import app\n"
        "heavy = {'pyspark', 'py4j', 'pandas', 'numpy', 'pyarrow', 'deltalake',"
        " 'confluent_kafka', 'rich.progress', 'starlette', 'matplotlib'}\n"
        f"for words in {commands!r}:\n"
        "    assert not get_command(app)(words, standalone_mode=False), words\n"
        "    assert not heavy & set(sys.modules), (words, heavy & set(sys.modules))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "EBBTIDE_HOME": str(tmp_path / "home")},
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


SMALLEST = """
import typer
app = typer.Typer()
@app.command()
def inspect(name: str = "a") -> None: "One command."
@app.command()
def other() -> None: "Another."
app()
"""


def cpu_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """Every help text, from one process that may import nothing heavy."""
    program = (
        "import io, json, sys\n"
        "from contextlib import redirect_stdout\n"
        "from typer.main import get_command\n"
        "from ebbtide.cli import app\n"
        "command, answers = get_command(app), {}\n"
        f"for words in {HELPS!r}:\n"
        "    with redirect_stdout(io.StringIO()) as text:\n"
        "        assert not command(words, standalone_mode=False), words\n"
        "    answers[' '.join(words)] = text.getvalue()\n"
        "heavy = {'pyspark', 'py4j', 'pandas', 'confluent_kafka', 'deltalake'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "print(json.dumps(answers))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    found: dict[str, str] = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize("arguments", HELPS, ids=" ".join)
def test_help_has_examples_and_fits(helps: dict[str, str], arguments: list[str]) -> None:
    text = helps[" ".join(arguments)]
    if arguments not in (
        ["--help"],
        ["broker", "--help"],
        ["generate", "--help"],
        ["state", "--help"],
        ["warm", "--help"],
    ):
        assert "$ ebbtide" in text or "| ebbtide" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "<bool>" not in text


def test_help_groups_the_commands(helps: dict[str, str]) -> None:
    for panel in ("Operate on a checkpoint", "Run pipelines", "Reprocess", "Try it out"):
        assert f"─ {panel} ─" in helps["--help"]
    assert "─ Commands ─" not in helps["--help"]


@pytest.mark.parametrize("arguments", HELPS, ids=" ".join)
def test_help_gives_the_text_its_room(helps: dict[str, str], arguments: list[str]) -> None:
    """Where the text of an option goes on in another line, it has at least 40 of 80 columns."""
    rows = re.findall(r"^│( +)\S.*│$", helps[" ".join(arguments)], flags=re.MULTILINE)
    indents = [len(indent) for indent in rows if len(indent) > 10]
    assert 78 - 1 - max(indents, default=0) >= 40


def test_layers_hold() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports; exit(lint_imports())"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout


def test_a_missing_extra_prints_the_pip_line() -> None:
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "from ebbtide.cli import main\n"
        "for words in (['run', 'visits-windows-counter'], ['jobs']):\n"
        "    sys.argv = ['ebbtide', *words]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        print(end.code)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert answer.stdout.split() == ["1", "1"], answer.stderr
    assert answer.stderr.count(f"{pip_line('spark')} 'pyspark==4.2.*'") == 2  # here it is there
    assert "Traceback" not in answer.stderr


MUTATORS = {"changing", "write", "remove", "remove_tree", "remove_empty", "move", "link"} | {
    *("probe", "remove_leftovers", "finish_write")
}
OPENERS = {"WritableFolder", "open_writable"}
SINKS = {f"connectors/{name}.py" for name in ("base", "delta/rollback", "delta/sink", "files/sink")}
"""They change a sink's own folder, which `rewind` opens for them."""


def test_only_rewind_changes_a_checkpoint() -> None:
    """A folder that can be changed is opened in `rewind` alone, for our notes and for journals.

    Everywhere else a folder has only methods that read: mypy refuses the others.
    """
    source = Path(ebbtide.__file__).parent
    wrong = [
        f"{module}: {problem}"
        for path in source.rglob("*.py")
        if not (module := path.relative_to(source).as_posix()).startswith(("storage/", "rewind/"))
        and module not in ("notes.py", "reprocessing/journal.py")
        for problem in changes_of_a_folder(path.read_text("utf-8"), sink=module in SINKS)
    ]
    assert wrong == []


def changes_of_a_folder(source: str, *, sink: bool) -> list[str]:
    """What a module does that only `rewind` may do; a sink may change a folder that it is given."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(names=names) if not sink:
                found += [f"imports {one.name}" for one in names if one.name in OPENERS]
            case ast.Call(func=ast.Name(id=name)) if name in OPENERS:
                found.append(f"calls {name}")
            case ast.Attribute(attr=name) if name in OPENERS:
                found.append(f"uses {name}")
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in MUTATORS:
                if not sink and re.search(r"folder|origin|storage", ast.unparse(owner), re.I):
                    found.append(f"calls {ast.unparse(owner)}.{name}")
    return found


@pytest.mark.parametrize(
    ("line", "sink", "refused"),
    [
        ("from ebbtide.storage import open_writable", False, True),
        ("storage.open_writable(place)", False, True),
        ("self._folder.remove('offsets/5')", False, True),
        ("open_folder(place).write('offsets/5', '')", False, True),
        ("there.move(path, kept)", True, False),
        ("open_writable(place)", True, True),
        ("stream.write(text)", False, False),
        ("write_note(folder, 'lease.json', {})", False, False),
    ],
)
def test_a_change_of_a_checkpoint_elsewhere_is_seen(line: str, sink: bool, refused: bool) -> None:
    assert bool(changes_of_a_folder(line, sink=sink)) == refused
