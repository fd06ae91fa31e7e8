"""Read a checkpoint of Spark Structured Streaming; nothing here can change one."""

from ebbtide.checkpoint import layout, log_files, state_files, verification
from ebbtide.checkpoint.journal import Backup, Journal, SinkChange
from ebbtide.checkpoint.log_files import read_logs
from ebbtide.checkpoint.owner import Owner
from ebbtide.checkpoint.reader import Checkpoint, read_checkpoint
from ebbtide.checkpoint.timeline import Timeline

__all__ = [
    "Backup",
    "Checkpoint",
    "Journal",
    "Owner",
    "SinkChange",
    "Timeline",
    "layout",
    "log_files",
    "read_checkpoint",
    "read_logs",
    "state_files",
    "verification",
]
