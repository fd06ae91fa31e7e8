"""The libraries that lie beside the page are the ones that were chosen, unchanged."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ebbtide import web

VENDOR = Path(web.__file__).parent / "static" / "vendor"
# dist/ of htmx 2.0.11 and uPlot 1.6.32; another content is another version
PINNED = {
    "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
VERSIONS = {"htmx.min.js": 'version:"2.0.11"', "uPlot.iife.min.js": "uPlot (v1.6.32)"}


@pytest.mark.parametrize("name", PINNED)
def test_is_unchanged(name: str) -> None:
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == PINNED[name]


@pytest.mark.parametrize("name", VERSIONS)
def test_says_its_version(name: str) -> None:
    assert VERSIONS[name] in (VENDOR / name).read_text("utf-8")


def test_each_has_its_licence_and_nothing_else_is_there() -> None:
    licences = {"htmx.LICENSE", "uPlot.LICENSE"}
    assert {file.name for file in VENDOR.iterdir()} == PINNED.keys() | licences
