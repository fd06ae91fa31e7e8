"""The documentation site: its navigation, what is generated, and a build without warnings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import ebbtide
from scripts import reference, site

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    return loaded


@pytest.fixture(scope="module")
def nav(config: dict[str, Any]) -> list[tuple[str, str]]:
    return list(site.list_pages(site.expand_nav(config["nav"], DOCS)))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert "No module named mkdocs" not in answer.stderr, "Type: make docs"
    assert answer.returncode == 0, answer.stderr
    assert not re.search(r"^WARNING", answer.stderr, re.M), answer.stderr
    return folder


def test_every_page_is_in_the_navigation_once(nav: list[tuple[str, str]]) -> None:
    listed = [path for _, path in nav]
    assert sorted(listed) == sorted(PAGES)


def test_the_sections_are_those_that_readers_look_for(nav: list[tuple[str, str]]) -> None:
    sections = list(dict.fromkeys(section for section, _ in nav))
    assert sections == [
        *("", "Start", "How to", "Guide", "Systems", "Production", "Reference", "Decisions")
    ]


def test_the_commands_are_all_there() -> None:
    text = site.fill((DOCS / "reference/cli.md").read_text("utf-8"))
    for words, command in reference.list_commands().items():
        section = re.search(rf"^### {words}\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.M)
        assert section is not None, words
        assert f"$ {words}" in section[1] or f"| {words}" in section[1], words
        for parameter in command.params:
            if not getattr(parameter, "hidden", False) and parameter.name != "help":
                name = parameter.metavar if parameter.name not in section[1] else parameter.name
                assert (parameter.opts[-1] in section[1]) or name in section[1], (words, name)


def test_an_option_shows_its_default() -> None:
    text = reference.render_commands()
    assert "| `--count N` | `10000` | Number of events. |" in text
    assert "| `--late X` | `0.0` |" in text
    assert "<bool>" not in text


def test_the_public_names_are_all_there() -> None:
    text = reference.render_python()
    for name in ebbtide.__all__:
        assert re.search(rf"^::: ebbtide\.\w+\.{name}$", text, re.M), name


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_has_a_title_and_a_summary(page: str) -> None:
    title, summary = site.summarize((DOCS / page).read_text("utf-8"))
    assert title
    assert summary.endswith((".", "?", "…", ":")), summary


def test_it_builds_without_warnings(built: Path) -> None:
    for page in PAGES:
        assert (built / page).with_suffix(".html").exists(), page
    index = json.loads((built / "search/search_index.json").read_text("utf-8"))
    found = {entry["location"] for entry in index["docs"]}
    assert "reference/cli.html#ebbtide-rewind" in found
    assert "reference/python.html#ebbtide.api.plan_rewind" in found
    assert "reference/json.html#rewind-plan" in found


def test_it_loads_nothing_from_elsewhere(built: Path) -> None:
    assert site.find_requests(built) == []
    styles = "".join(path.read_text("utf-8") for path in built.rglob("*.css"))
    assert not re.search(r"url\([\"']?(https?:)?//", styles)


def test_it_says_nothing_of_this_machine(built: Path) -> None:
    for page in built.rglob("*.html"):
        assert str(ROOT) not in page.read_text("utf-8"), page


def test_llms_txt_lists_every_page(built: Path, nav: list[tuple[str, str]]) -> None:
    text = (built / "llms.txt").read_text("utf-8")
    linked = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", text, re.M)
    assert linked == [path.replace(".md", ".html") for _, path in nav]
    assert all((built / link).exists() for link in linked)


def test_a_request_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<script src="https://cdn.example/a.js"></script>')
    (tmp_path / "b.html").write_text('<a href="https://example.org">b</a><img src="b.png">')
    assert site.find_requests(tmp_path) == ['a.html: <script src="https://cdn.example/a.js">']
