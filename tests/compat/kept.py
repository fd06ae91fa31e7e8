"""A checkpoint in, a small archive out that is the same whoever packs it; and back."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

FIXTURES = Path(__file__).parent.parent / "fixtures" / "checkpoints"
"""`<version>/<cell>.tar.gz`, written by `scripts/compat --keep`."""


def pack(checkpoint: Path, archive: Path) -> None:
    """Every file, hidden ones and empty folders too; no owner, no times."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as zipped:
        with tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for path in sorted(checkpoint.rglob("*")):
                entry = tarfile.TarInfo(path.relative_to(checkpoint).as_posix())
                if path.is_dir():
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(entry)
                else:
                    entry.size = path.stat().st_size
                    with path.open("rb") as content:
                        tar.addfile(entry, content)


def unpack(archive: Path, checkpoint: Path) -> Path:
    """The checkpoint as it was."""
    with tarfile.open(archive) as tar:
        tar.extractall(checkpoint, filter="fully_trusted")
    return checkpoint
