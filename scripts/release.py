"""Rehearse a release: `python -m scripts.release [build]`. It publishes nothing.

Steps: **1** build the sdist, and the wheel from it; **2** check both; **3** the notes, from the
changelog; **4** the bill of materials; **5** known vulnerabilities; **6** what is left to type.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ebbtide.version import __version__

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
PINNED = "requirements/image-spark.txt"
"""All that users install: the core, and every extra but `java`."""
_BIN = Path(sys.executable).parent


def build(out: Path) -> list[Path]:
    """The package in a folder of its own: first the sdist, then from it the wheel."""
    shutil.rmtree(out, ignore_errors=True)
    _run("uv", "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "-o", out)
    (out / ".gitignore").unlink(missing_ok=True)
    return sorted(out.iterdir())


def check(files: list[Path]) -> None:
    """Would an index accept the files, and does the wheel have what it should?"""
    _run("twine", "check", "--strict", *files)
    _run("check-wheel-contents", *(file for file in files if file.suffix == ".whl"))


def release_notes(changelog: str, version: str) -> str:
    r"""What the changelog says about a version; of one that is not out yet, what is unreleased.

    >>> release_notes("# Changelog\n## [Unreleased]\n- New.\n## [0.1.0]\n- Old.\n", "0.1.0")
    '- Old.'
    >>> release_notes("# Changelog\n## [Unreleased]\n- New.\n## [0.1.0]\n- Old.\n", "0.2.0")
    '- New.'
    """
    parts = re.split(r"^## \[([^\]]+)\].*\n", changelog, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return sections.get(version, sections["Unreleased"]).strip()


def main() -> None:
    """Play the steps."""
    # 1, 2
    files = build(DIST)
    check(files)
    print(*(f"{file.relative_to(ROOT)}  {file.stat().st_size:,} bytes" for file in files), sep="\n")
    if sys.argv[1:] == ["build"]:
        return
    # 3
    notes = release_notes((ROOT / "CHANGELOG.md").read_text("utf-8"), __version__)
    (DIST / "notes.md").write_text(notes + "\n", "utf-8")
    # 4
    materials = DIST / f"ebbtide-{__version__}.cdx.json"
    project = ("--pyproject", "pyproject.toml", "--output-reproducible")
    _run("cyclonedx-py", "requirements", PINNED, *project, "--output-file", materials)
    # 5
    audited = _audit()
    # 6
    print(f"Notes: dist/notes.md. Bill of materials: dist/{materials.name}. {audited}")
    print(f"To release {__version__}, date its section in CHANGELOG.md, then type:")
    print(f"  git tag --sign v{__version__} && git push origin v{__version__}")
    print("  twine upload dist/*.whl dist/*.tar.gz")
    tags = _git("tag", "--points-at", "HEAD").split()
    wrong = [tag for tag in tags if re.match(r"v\d", tag) and tag != f"v{__version__}"]
    if wrong:
        sys.exit(f"The tag {wrong[0]} is not v{__version__}: change src/ebbtide/version.py.")
    if _git("status", "--porcelain"):
        sys.exit("The working tree has changes: commit them first.")


def _audit() -> str:
    """What is known against the pinned versions, and of how many nothing could be learnt."""
    words = ["--require-hashes", "--disable-pip", "--format", "json", "-r", PINNED]
    done = subprocess.run(
        [_BIN / "pip-audit", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if not done.stdout.strip():
        return f"NOT audited: {done.stderr.strip().splitlines()[-1]}"
    found = json.loads(done.stdout)["dependencies"]
    bad = [f"{each['name']} {each['version']}" for each in found if each.get("vulns")]
    if bad:
        sys.exit(f"Known vulnerabilities in {', '.join(bad)}. Type: make lock")
    known = [each for each in found if "skip_reason" not in each]
    if len(known) < len(found):
        return f"NOT audited: {len(found) - len(known)} of {len(found)} packages were not found."
    return f"No known vulnerability in {len(found)} packages."


def _run(program: str, *words: str | Path) -> None:
    done = subprocess.run(
        [_BIN / program, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{program} {words[0]} failed:\n{done.stdout}{done.stderr}")


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    main()
