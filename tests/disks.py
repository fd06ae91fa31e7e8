from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests cut no real power, so a write need not reach the disk before the next step."""
    monkeypatch.setattr(os, "fsync", lambda _file: None)
