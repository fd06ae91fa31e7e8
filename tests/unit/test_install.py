"""What `make` installs, and the one line that says what is missing."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "install.py"
_spec = importlib.util.spec_from_file_location("install", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
install = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(install)


def test_an_old_python_is_told_which_one_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    ast.parse(SCRIPT.read_text("utf-8"), feature_version=(3, 6))  # or it could not say so
    monkeypatch.setattr(sys, "argv", ["install.py", "demo"])
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    with pytest.raises(SystemExit, match=r"needs Python 3\.10 to 3\.13.*PYTHON=python3\.12 demo"):
        install.main()


def test_uv_is_told_what_pip_is_told() -> None:
    listed = "global.index-url='https://mirror/simple'\n:env:.find-links='/wheels'\nglobal.x='y'"
    told = install.uv_environment(listed, {"UV_FIND_LINKS": "/mine", "A": "1"})
    assert told == {"UV_DEFAULT_INDEX": "https://mirror/simple", "UV_FIND_LINKS": "/mine", "A": "1"}


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("ensurepip is not available.", "apt install python3-venv"),
        ("  × Failed to build x\n  ╰─▶ error: command 'gcc' failed", "needs a C compiler: error"),
        ("error: Hash mismatch for `numpy`", "not the one that is pinned: error: Hash mismatch"),
        ("OSError: [Errno 28] No space left on device", "The disk is full"),
        ("error: Request failed\n  dns error: lookup failed", "Check the network"),
        ("something else\nfor a reason", "That failed: for a reason"),
    ],
)
def test_one_line_says_what_is_missing(printed: str, said: str) -> None:
    assert said in install.reason(printed, "the package index")


def test_a_demo_installs_what_the_tests_install_and_less() -> None:
    """The same versions, or `make demo` after `make test` would change the environment."""
    demo, dev = (set(install.pinned(ROOT / install.SETS[name])) for name in ("demo", "dev"))
    assert demo < dev
    assert len(demo) < len(dev) / 3
    assert not demo & {"pytest", "mypy", "playwright", "moto"}


def test_without_a_network_it_ends_with_two_lines(tmp_path: Path) -> None:
    for name in ("scripts/install.py", "requirements/setup.txt", "requirements/spark.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    path = tmp_path / "bin"
    path.mkdir()
    environ = {"PATH": str(path), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    answer = subprocess.run(
        [sys.executable, tmp_path / "scripts" / "install.py", "demo"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert answer.stdout.startswith("Creating the virtual environment .venv …\n")
    assert answer.stderr.startswith("No packages from the package index: ")
    assert answer.stderr.count("\n") == 2
    assert "Traceback" not in answer.stderr


def test_an_environment_of_an_old_python_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no pinned package fits, and the error names one of them."""
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    monkeypatch.setattr(install, "PYTHON", str(python))
    for version, usable in (((3, 9), False), ((3, 12), True), ((3, 14), False)):
        old = f"import sys\nsys.version_info = {(*version, 0)}\n"
        python.write_text(f"#!{sys.executable}\n{old}exec(sys.argv[2])\n")
        python.chmod(0o755)
        assert install.runs(install.USABLE) is usable
