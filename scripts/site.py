"""Hooks of MkDocs: generated pages, links that leave the documentation, and llms.txt."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from scripts import reference  # noqa: E402

_LOG = logging.getLogger("mkdocs.hooks.ebbtide")
_GENERATED = re.compile(r"<!-- generated: (\w+) .*?-->", re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_FETCHED = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
)
_SUMMARY_LENGTH = 160


def expand_nav(nav: list[Any], docs: Path) -> list[Any]:
    """The navigation, with a folder such as `adr/` replaced by its pages."""
    return [_expand(entry, docs) for entry in nav]


def _expand(entry: Any, docs: Path) -> Any:
    if not isinstance(entry, dict):
        return entry
    ((title, value),) = entry.items()
    if isinstance(value, list):
        return {title: expand_nav(value, docs)}
    if value.endswith("/"):
        return {title: sorted(p.relative_to(docs).as_posix() for p in (docs / value).glob("*.md"))}
    return entry


def list_pages(nav: list[Any], section: str = "") -> Iterator[tuple[str, str]]:
    """The section and the path of each page in an expanded navigation, in order.

    >>> list(list_pages([{"Home": "index.md"}, {"Start": ["a.md", {"B": "b.md"}]}]))
    [('', 'index.md'), ('Start', 'a.md'), ('Start', 'b.md')]
    """
    for entry in nav:
        value = entry if isinstance(entry, str) else next(iter(entry.values()))
        if isinstance(value, list):
            yield from list_pages(value, section or next(iter(entry)))
        else:
            yield section, value


def fill(markdown: str) -> str:
    """A page with its generated parts in the place of their comments."""
    parts = {
        "commands": reference.render_commands,
        "python": reference.render_python,
        "schemas": reference.render_schemas,
    }
    return _GENERATED.sub(lambda match: parts[match[1]](), markdown)


def drop_outer_links(markdown: str, page: str) -> str:
    """A page whose links to files outside of the documentation are plain text.

    >>> drop_outer_links("[a](../b.md), [`c`](../../Makefile), [d](https://e.org)", "guide/x.md")
    '[a](../b.md), `c`, [d](https://e.org)'
    """

    def replace(link: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(page), link[2]))  # noqa: PTH118, PTH120
        return link[1] if target.startswith("..") and "://" not in link[2] else link[0]

    return _LINK.sub(replace, markdown)


def summarize(markdown: str) -> tuple[str, str]:
    r"""The title of a page, and the first sentence of its first paragraph.

    >>> summarize("# A *page*\n\n<!-- x -->\n\nSay `so`, at [once](b.md). And more.")
    ('A page', 'Say so, at once.')
    """
    text = re.sub(r"<!--.*?-->|```.*?```|\*\*Situation\.\*\* ", "", markdown, flags=re.DOTALL)
    title = re.search(r"^# (.+)$", text, re.M)
    first = next(
        (part for part in re.split(r"\n\s*\n", text) if re.match(r"[\w*`\"'(\[]", part.strip())), ""
    )
    plain = re.sub(r"[`*]|!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    sentence = re.split(r"(?<=[.?])\s", plain.strip())[0]
    if len(sentence) > _SUMMARY_LENGTH:
        sentence = f"{sentence[:_SUMMARY_LENGTH].rsplit(' ', 1)[0]} …"
    return re.sub(r"[`*]", "", title[1]) if title else "", sentence


def render_llms(pages: list[tuple[str, str]], docs: Path, name: str, description: str) -> str:
    """The text of llms.txt: a title, a one-line summary and a link for each page."""
    lines = [f"# {name}", "", f"> {description}"]
    last = ""
    for section, path in pages:
        if section != last:
            lines += ["", f"## {section}", ""]
            last = section
        elif not section:
            lines.append("")
        title, summary = summarize((docs / path).read_text("utf-8"))
        lines.append(f"- [{title}]({path.removesuffix('.md')}.html): {summary}")
    return "\n".join(lines) + "\n"


def find_requests(site: Path) -> list[str]:
    """The tags of a built site that would load something from elsewhere."""
    return [
        f"{page.relative_to(site)}: {tag}"
        for page in sorted(site.rglob("*.html"))
        for tag in _FETCHED.findall(page.read_text("utf-8"))
        if 'rel="canonical"' not in tag
    ]


def on_config(config: Any) -> Any:
    """Add the pages of folders to the navigation."""
    config.nav = expand_nav(config.nav, Path(config.docs_dir))
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in what is generated, and drop links that the site cannot follow."""
    return drop_outer_links(fill(markdown), page.file.src_uri)


def on_post_build(config: Any, **_: Any) -> None:
    """Write llms.txt; a page that loads something from elsewhere is a warning."""
    pages = list(list_pages(config.nav))
    site = Path(config.site_dir)
    text = render_llms(pages, Path(config.docs_dir), config.site_name, config.site_description)
    (site / "llms.txt").write_text(text, "utf-8")
    for request in find_requests(site):
        _LOG.warning("The page loads something from elsewhere: %s", request)
