"""The faces of archive and reprocessing: few names, and nothing heavy until it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ebbtide.archive
import ebbtide.reprocessing


@pytest.mark.parametrize("package", ["archive", "reprocessing"])
def test_a_face_is_small_and_light(package: str) -> None:
    names = sys.modules[f"ebbtide.{package}"].__all__
    assert len(names) <= 12
    heavy = "{'pyspark', 'py4j', 'deltalake', 'confluent_kafka', 'matplotlib'} & set(sys.modules)"
    script = f"import sys, ebbtide.{package}; sys.exit(str({heavy}) if {heavy} else 0)"
    subprocess.run([sys.executable, "-c", script], check=True)
    for name in names:
        assert getattr(sys.modules[f"ebbtide.{package}"], name) is not None


def test_what_a_face_does_not_have() -> None:
    with pytest.raises(AttributeError, match=r"'ebbtide\.archive' has no attribute 'missing'"):
        getattr(ebbtide.archive, "missing")  # noqa: B009
