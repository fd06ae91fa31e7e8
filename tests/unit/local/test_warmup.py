"""The run that writes class archives stays in its own home and on its own broker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ebbtide.local import broker, warm_up
from ebbtide.runtime import java


def test_the_run_keeps_to_its_own_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, python = tmp_path / "log", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {log}\n', "utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(java, "BUNDLED", "")  # its archive of Java's own classes is not of interest
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EBBTIDE_BOOTSTRAP_SERVERS", "production:9092")
    warm_up()
    commands = log.read_text("utf-8").splitlines()
    assert [" ".join(line.split()[2:4]) for line in commands] == [
        "broker start",
        "generate visits",
        "run ebbtide.systems.warmup_job:pipeline",
        "broker stop",
    ]
    assert all(f"--bootstrap-servers {broker.HOST}:" in line for line in commands)
    assert "--master local[*]" in commands[2]  # spark-defaults.conf may name a cluster
