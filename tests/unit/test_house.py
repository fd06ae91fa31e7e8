"""The rules of the house: faces, layers, names, and which half needs Spark."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import ebbtide

ROOT = Path(ebbtide.__file__).parent
TREES = {file: ast.parse(file.read_text("utf-8")) for file in sorted(ROOT.rglob("*.py"))}
PACKAGES = sorted(file.parent for file in ROOT.rglob("__init__.py"))
MOST_NAMES = 12
MOST_LINES = 450
ENDS = {"Kafka", "Delta", "Files", "Console", "ForeachBatch"}
KINDS = {"kafka", "delta", "files", "console", "foreach-batch"}
ABOUT_ONE_SYSTEM = ("archive/", "systems/", "local/", "testing.py", "pipeline.py")
"""An archive is a Delta copy of a topic, and the five systems name what they read and write."""
LIGHT = ["checkpoint", "connectors", "history", "retention", "rewind", "report", "advice", "api"]


def dotted(file: Path) -> str:
    """The name under which a file is imported."""
    parts = file.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def area(module: str) -> str:
    """The top-level package or module that something belongs to."""
    return ".".join(module.split(".")[:2])


def is_package(module: str) -> bool:
    return (ROOT.parent / module.replace(".", "/") / "__init__.py").is_file()


def is_module(module: str) -> bool:
    path = ROOT.parent / module.replace(".", "/")
    return path.with_suffix(".py").is_file() or is_package(module)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() or "ebbtide"


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Module and name of every import of ours, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ebbtide":
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if a.name.split(".")[0] == "ebbtide")


def past_the_face(source: str, module: str, name: str) -> bool:
    """Whether an import reaches into another package instead of taking what its face shows."""
    target = f"{module}.{name}" if name and is_module(f"{module}.{name}") else module
    if module == "ebbtide" and target == "ebbtide":
        return False  # the public names
    if area(target) == area(source) or target.count(".") == 1:
        return False
    if target != module:  # a module by its name: only the face of an inner package, or one shown
        return not is_package(target) and name not in face_names(module)
    return not is_package(module) or name not in face_names(module)


def face_names(package: str) -> list[str]:
    return list(getattr(importlib.import_module(package), "__all__", ()))


def test_other_packages_are_used_through_their_faces() -> None:
    inside = [
        f"{name_of(file)} imports {module}: {name}"
        for file, tree in TREES.items()
        for module, name in imports(tree)
        if past_the_face(dotted(file), module, name)
    ]
    assert inside == []


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_a_face_shows_few_names(package: Path) -> None:
    module = importlib.import_module(dotted(package / "__init__.py"))
    most = 17 if package == ROOT else MOST_NAMES
    names = module.__all__
    assert len(names) <= most
    for name in names:
        assert getattr(module, name) is not None


def test_public_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name_of(file))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_no_module_is_too_long() -> None:
    lengths = {name_of(file): len(file.read_text("utf-8").splitlines()) for file in TREES}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def asks_which(tree: ast.AST) -> Iterator[int]:
    """The lines that ask which connector something is, instead of asking the connector."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                if {n.id for n in ast.walk(kinds) if isinstance(n, ast.Name)} & ENDS:
                    yield node.lineno
            case ast.MatchClass(cls=ast.Name(id=name)) if name in ENDS:
                yield node.lineno
            case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn(), *_]):
                values = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                if values & KINDS:
                    yield node.lineno
            case ast.MatchValue(value=ast.Constant(value=str(kind))) if kind in KINDS:
                yield node.lineno


def test_the_core_never_asks_which_connector_it_has() -> None:
    core = {
        file: tree
        for file, tree in TREES.items()
        if not name_of(file).startswith(("connectors/", *ABOUT_ONE_SYSTEM))
    }
    asking = [f"{name_of(file)}:{line}" for file, tree in core.items() for line in asks_which(tree)]
    assert asking == []


@pytest.mark.parametrize("package", LIGHT)
def test_the_light_packages_need_no_spark(package: str) -> None:
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('pyspark', 'py4j', 'pandas')))\n"
        f"import ebbtide.{package} as face\n"
        "for name in getattr(face, '__all__', ()):\n"
        "    getattr(face, name)\n"
        "import ebbtide.connectors as connectors\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
