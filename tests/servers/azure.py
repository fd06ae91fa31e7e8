"""Azure's blob storage by Azurite, in a process of its own.

Azurite has no hierarchical namespace, which Hadoop's `abfs://` asks for: Spark cannot reach it, so
`spark` names only the settings that would give Spark the account's key.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ebbtide.local.broker import free_port
from tests.servers.downloads import azurite
from tests.servers.store import Store, running, written

ACCOUNT = "ebbtidetests"


@contextmanager
def serve() -> Iterator[Store]:
    """A blob storage for fsspec and Delta's log reader."""
    port, key = free_port(), base64.b64encode(os.urandom(64)).decode()
    command = [*azurite(), "--silent", "--inMemoryPersistence", "--disableTelemetry"]
    command += ["--skipApiVersionCheck", "--blobPort", str(port)]
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    address = (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};"
        f"BlobEndpoint={endpoint};"
    )
    with running(
        "azure",
        lambda _: command,
        written("successfully listen"),
        AZURITE_ACCOUNTS=f"{ACCOUNT}:{key}",
    ):
        yield Store(
            kind="azure",
            protocol="abfs",
            authority="",
            options={"connection_string": address},
            environment={"AZURE_STORAGE_CONNECTION_STRING": address},
            spark={f"spark.hadoop.fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net": key},
            spellings=(
                f"abfss://{{container}}@{ACCOUNT}.dfs.core.windows.net/{{path}}",
                "az://{container}/{path}",
            ),
        )
