"""Leases of other hosts, and what they do with them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ebbtide.notes import write_note
from ebbtide.rewind import holders
from ebbtide.rewind.holders import Lease, Renewal
from ebbtide.storage import WritableFolder

ELSEWHERE = Lease("elsewhere", ((7, 1),), 1.0, machine="another", token="theirs", number=1)


def plant(folder: WritableFolder, lease: Lease = ELSEWHERE) -> Lease:
    """Another process has taken a lease."""
    lease = replace(lease, location=folder.address, address=folder.address)
    write_note(folder, holders.lease_note(lease.number), lease.to_note())
    return lease


def renew(folder: WritableFolder, lease: Lease, **changed: object) -> Lease:
    """Its holder is still there."""
    lease = replace(lease, **{"renewals": lease.renewals + 1, **changed})  # type: ignore[arg-type]
    note = Renewal(lease.token, lease.processes, lease.renewed, lease.renewals, lease.released)
    write_note(folder, holders.renewal_note(lease.number), vars(note))
    return lease


@contextmanager
def on_another_host(seconds: float = 0) -> Iterator[None]:
    """Do something as another host would, which has watched the leases here for a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ebbtide.rewind.holders.machine", lambda: "another")
        patch.setattr("ebbtide.rewind.lease.machine", lambda: "another")
        patch.setattr("ebbtide.rewind.holders.held_here", set())
        patch.setattr("ebbtide.rewind.holders.given_back", set())
        patch.setattr("ebbtide.rewind.holders.LASTS_SECONDS", seconds)
        patch.setattr(socket, "gethostname", lambda: "elsewhere")
        yield


class Clock:
    """The clock by which a holder counts: it goes on only while the holder is stalled.

    A busy machine would add seconds of its own.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stalled = 0.0
        from ebbtide.rewind import lease

        now = lease._now()
        monkeypatch.setattr(lease, "_now", lambda: now + self.stalled)
