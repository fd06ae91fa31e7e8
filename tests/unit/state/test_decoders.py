"""Decoders of state are registered by name and imported when state is read."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ebbtide.state import StateDecoder, decoders, register_decoder

TEXTS = StateDecoder(lambda rows: rows == "text", str.upper)  # type: ignore[comparison-overlap, arg-type]
ALL = StateDecoder(lambda _rows: True, str.title)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "_REFERENCES", [])


def test_the_first_decoder_that_matches_wins() -> None:
    rows: Any = "text"
    assert decoders.find_decoder(rows) is None
    for name in ("TEXTS", "ALL", "TEXTS"):
        register_decoder(f"{__name__}:{name}")
    assert len(decoders._REFERENCES) == 2
    assert decoders.find_decoder(rows) is TEXTS
    other: Any = "other"
    assert decoders.find_decoder(other) is ALL


def test_state_knows_no_system_until_one_registers_its_decoder() -> None:
    program = (
        "import sys\n"
        "from ebbtide.state import decoders\n"
        "assert not any(name.startswith('ebbtide.systems') for name in sys.modules)\n"
        "from ebbtide.systems import register_decoders\n"
        "register_decoders()\n"
        "assert 'pyspark' not in sys.modules\n"
        "print(*decoders._REFERENCES)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.stdout == "ebbtide.systems.early_writer.state_decoder:DECODER\n", answer.stderr
