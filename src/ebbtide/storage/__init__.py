"""Read and change the files of a folder, local or remote, through fsspec."""

from ebbtide.storage.folder import NOTES, TEMPORARY, Folder, Listing, Stat, Tree, open_folder
from ebbtide.storage.writable import WritableFolder, open_writable

__all__ = [
    "NOTES",
    "TEMPORARY",
    "Folder",
    "Listing",
    "Stat",
    "Tree",
    "WritableFolder",
    "open_folder",
    "open_writable",
]
