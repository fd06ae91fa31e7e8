"""Read and change the files of a folder, local or remote, through fsspec."""

from ebbtide.storage.folder import NOTES, TEMPORARY, Folder, Listing, Stat, Tree, open_folder
from ebbtide.storage.options import delta_location
from ebbtide.storage.writable import WritableFolder, open_writable

__all__ = [
    "NOTES",
    "TEMPORARY",
    "Folder",
    "Listing",
    "Stat",
    "Tree",
    "WritableFolder",
    "delta_location",
    "open_folder",
    "open_writable",
]
