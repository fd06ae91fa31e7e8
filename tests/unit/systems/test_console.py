from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ebbtide.cli import main, pipelines, replay
from ebbtide.replaying import ReplayResult
from ebbtide.runtime import StreamResult
from ebbtide.systems.console import parse_console
from tests.trees import Shape, make

BATCH = """\
-------------------------------------------
Batch: {n}
-------------------------------------------
+------------------------------------------+-----+
|window                                    |count|
+------------------------------------------+-----+
|{{2025-09-04 07:00:00, 2025-09-04 07:10:00}}|{n}    |
+------------------------------------------+-----+

"""


def test_batches_and_rows() -> None:
    found = parse_console(BATCH.format(n=3) + "noise\n" + BATCH.format(n=4))
    assert [batch.id for batch in found] == [3, 4]
    window = "{2025-09-04 07:00:00, 2025-09-04 07:10:00}"
    assert found[1].rows == ({"window": window, "count": "4"},)


def test_a_batch_that_is_half_printed_is_not_there_yet() -> None:
    text = BATCH.format(n=1)
    for cut in range(len(text) - len("+------------------------------------------+-----+\n\n")):
        assert parse_console(text[:cut]) == []
    assert len(parse_console(text)) == 1


def print_rows() -> None:
    """As Spark's JVM does, a child process that has our stdout."""
    subprocess.run([sys.executable, "-c", f"print({BATCH.format(n=3)!r})"], check=True)


@pytest.mark.parametrize("command", ["run", "replay"])
@pytest.mark.parametrize("output", ["json", "table"])
def test_rows_are_not_mixed_with_a_result_in_json(
    command: str,
    output: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = {
        "run": StreamResult("p", "c", 1, 3, 0, None, 3, "id"),
        "replay": ReplayResult("p", "c", 3, 3, ()),
    }

    def act(*_: Any, **__: Any) -> Any:
        print_rows()
        return results[command]

    monkeypatch.setattr("ebbtide.runtime.run_stream", act)
    monkeypatch.setattr("ebbtide.replaying.replay_pipeline", act)
    for module in (pipelines, replay):
        monkeypatch.setattr(module, "prepare_run", lambda settings, *_, **__: settings)
    make(tmp_path / "checkpoints" / "visits-counter", Shape())
    words = [command, "visits-counter", "--home", str(tmp_path), "-o", output]
    monkeypatch.setattr(sys, "argv", ["ebbtide", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    stdout, stderr = capfd.readouterr()
    apart = output == "json"
    assert [len(parse_console(text)) for text in (stdout, stderr)] == [not apart, apart]
    assert not apart or json.loads(stdout)["checkpoint"] == "c"
