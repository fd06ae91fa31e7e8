"""Two hosts work on one checkpoint at once: a few rounds; `make hosts` runs 200 on each store."""

from __future__ import annotations

import os

import pytest

from tests import hosts

ROUNDS = int(os.environ.get("EBBTIDE_HOSTS", "0"))


@pytest.mark.parametrize("kind", hosts.KINDS if ROUNDS else hosts.KINDS[:2])
def test_exactly_one_of_two_hosts_has_a_checkpoint(kind: str) -> None:
    with hosts.open_store(kind) as store:
        assert hosts.race(store, ROUNDS or 6) == []
