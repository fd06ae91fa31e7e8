"""Folders of files as sources and sinks."""

from ebbtide.connectors.base import Connector
from ebbtide.connectors.files.sink import FilesSink
from ebbtide.connectors.files.source import FilesSource

__all__ = ["CONNECTOR"]
CONNECTOR = Connector("files", "the files", FilesSource(), FilesSink(), f"{__name__}.spark")
