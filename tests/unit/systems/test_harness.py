"""The stage of a demo, with a broker that is not really started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ebbtide.config import Settings
from ebbtide.systems import harness


def test_a_demo_has_a_home_of_its_own_also_if_the_users_is_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = SimpleNamespace(bootstrap_servers="127.0.0.1:9092")
    monkeypatch.setattr(harness, "start_broker", lambda *_, **__: broker)
    monkeypatch.setattr(harness, "stop_broker", lambda _: None)
    settings = Settings(home=tmp_path, url="s3a://lake/ebbtide")
    with harness.open_stage(settings, harness.Narrator(to_stderr=True), "x", "X") as local:
        assert local.location("checkpoints") == str(tmp_path / "demos" / "x" / "checkpoints")


def test_a_demo_runs_on_this_machine_also_if_the_users_spark_is_a_cluster() -> None:
    """spark-defaults.conf may name one, which does not reach the broker of the demo."""
    local = Settings(bootstrap_servers="127.0.0.1:9092", timezone="Europe/Paris")
    for verb in ("run", "archive", "reprocess"):
        command = harness._command(local, verb, "visits-counter")
        flags = ["--master", "local[*]", "--timezone", "Europe/Paris"]
        assert command[3:9] == [verb, *flags, "visits-counter"]
    assert "--master" not in harness._command(local, "rewind", "checkpoint")
