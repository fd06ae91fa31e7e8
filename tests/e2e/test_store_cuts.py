"""Some of the power cuts of `make store-cuts`, on stores with and without a rename."""

from __future__ import annotations

import pytest

from tests.servers.stores import Stores
from tests.store_cuts import cut_shape


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_a_cut_on_a_store_is_safe_and_finishes(kind: str, use: Stores) -> None:
    assert cut_shape(use(kind), "hdfs", every=15) > 4
