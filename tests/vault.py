"""A filesystem that opens only with the password of its URL, or with its signature."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import urlsplit

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

PASSWORD = "tide%2Fs3cr%40t"
SIGNATURE = "s1gn4ture%3D"
SECRETS = (PASSWORD, "tide/s3cr@t", SIGNATURE, "s1gn4ture=")
"""As they are typed, and as a library may quote them."""


class VaultFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """In memory, so that the tests can look at every file."""

    protocol: ClassVar[str] = "vault"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self, *args: Any, password: str = "", query: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        if password != PASSWORD or SIGNATURE not in query:
            raise ValueError(f"{password!r} or {query!r} does not open it")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        path = path.partition("?")[0]
        path = urlsplit(path).path if path.startswith("vault://") else path
        return f"/{path.strip('/')}".rstrip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        url = urlsplit(path)
        return {"password": url.password or "", "query": url.query}

    def unstrip_protocol(self, name: str) -> str:
        return f"vault://ann:{PASSWORD}@host/{self._strip_protocol(name).strip('/')}"


def url_of(name: str) -> str:
    """The address of a folder, as a user would give it."""
    return f"vault://ann:{PASSWORD}@host/{name}?sv=2024&sig={SIGNATURE}"


fsspec.register_implementation("vault", VaultFileSystem, clobber=True)


def contents() -> dict[str, str]:
    """Every file, by its name."""
    files = VaultFileSystem.store.items()
    return {name: file.getvalue().decode("latin-1") for name, file in files}
