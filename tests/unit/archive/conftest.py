from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.config import Settings
from tests.inside import inside, no_waiting_for_the_disk, tmp_path  # noqa: F401


@pytest.fixture
def settings(tmp_path: Path) -> Settings:  # noqa: F811
    return Settings(home=tmp_path)
