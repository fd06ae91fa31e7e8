"""Install every server: `python -m tests.servers`. Tests do it, too, when one is missing."""

from __future__ import annotations

from tests.servers.downloads import azurite, fake_gcs, mini_hdfs

for install in (azurite, fake_gcs, mini_hdfs):
    install()
