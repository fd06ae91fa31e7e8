"""A data file of a Delta table, and what else must be there to read it."""

from __future__ import annotations

from base64 import b85decode
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

_TO_B85 = str.maketrans(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)
"""Delta writes ids in Z85, which is Python's base 85 with other letters."""


class TableFile(NamedTuple):
    """A data file as a table shows it: one with fewer of its rows is another one."""

    path: str
    """As it stands in the log, encoded as in a URL."""
    vector: tuple[str, str, int] | None = None
    """Its deletion vector: how it is stored, where, and at which offset."""

    @classmethod
    def of(cls, action: Mapping[str, Any]) -> TableFile:
        """The file that an action adds or removes."""
        if not (vector := action.get("deletionVector")):
            return cls(action["path"])
        where = vector["storageType"], vector["pathOrInlineDv"], vector.get("offset") or 0
        return cls(action["path"], where)

    @property
    def needs(self) -> list[str]:
        """The files that must be there to read it.

        >>> TableFile("part-0.parquet", ("u", "ab.e!S$C@d*qQg1(ThuB&G", 1)).needs[1]
        'ab/deletion_vector_c172e539-7934-4180-a261-181b36021bd6.bin'
        """
        match self.vector:
            case ("u", name, _):
                text = name[-20:].translate(_TO_B85)
                id_ = UUID(bytes=b85decode(text))
                prefix = f"{name[:-20]}/" if name[:-20] else ""
                return [self.path, f"{prefix}deletion_vector_{id_}.bin"]
            case ("p", path, _):
                return [self.path, path]
        return [self.path]
