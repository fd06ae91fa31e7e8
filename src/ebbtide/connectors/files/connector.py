"""The connector of files."""

from ebbtide.connectors.base import Connector
from ebbtide.connectors.files.sink import FilesSink
from ebbtide.connectors.files.source import FilesSource

CONNECTOR = Connector(
    "files", "the files", FilesSource(), FilesSink(), "ebbtide.connectors.files.spark"
)
