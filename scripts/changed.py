"""Print the tests of what changed since the last commit, or in it: `python -m scripts.changed`.

For `make check`: the tests of a package are those in the folder of its name, and the examples in
its docstrings.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
_ALWAYS = "tests/unit/test_house.py"
_OF_DOCS = ("tests/unit/test_docs.py", "tests/unit/test_site.py")


def find_tests(changed: Iterable[str]) -> list[str]:
    """The paths that pytest takes for changed files.

    >>> find_tests(["src/ebbtide/storage/local.py", "gone.py"])
    ['src/ebbtide/storage', 'tests/unit/storage', 'tests/unit/test_house.py']
    >>> find_tests(["tests/unit/rewind/test_known_sinks.py"])
    ['tests/unit/rewind/test_known_sinks.py', 'tests/unit/test_house.py']
    >>> find_tests(["docs/index.md"])
    ['tests/unit/test_docs.py', 'tests/unit/test_house.py', 'tests/unit/test_site.py']
    """
    found = {path for file in changed for path in _candidates(file) if (ROOT / path).exists()}
    return sorted({*found, _ALWAYS})


def _candidates(file: str) -> Iterator[str]:
    match file.split("/"):
        case ["src", "ebbtide", name, *rest]:
            package = name.removesuffix(".py")
            yield f"src/ebbtide/{name}" if rest or name.endswith(".py") else file
            yield from (f"tests/unit/{package}", f"tests/unit/test_{package}.py")
            yield from ["tests/unit/test_surface.py"] if package in ("cli", "api") else []
        case ["tests", "unit", *_, name] if name.startswith("test_"):
            yield file
        case ["docs", *_] | ["README.md"]:
            yield from _OF_DOCS
        case ["scripts", name] if name.endswith(".py"):
            yield from (file, f"tests/unit/test_{name}")


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


def main() -> None:
    """Look at the working tree; if it is clean, at the last commit."""
    changed = [*_git("diff", "--name-only", "HEAD"), *_git("ls-files", "--others", "-X.gitignore")]
    if not changed and _git("rev-list", "--max-count=2", "HEAD")[1:]:  # not in a shallow clone
        changed = _git("diff", "--name-only", "HEAD~1")
    print("\n".join(find_tests(changed)))


if __name__ == "__main__":
    main()
