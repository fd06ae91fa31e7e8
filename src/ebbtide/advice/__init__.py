"""Compare the two ways to recover from wrong results, rewind and reprocess, and recommend one."""

from ebbtide.advice.compare import advise_on_checkpoint, compare_options
from ebbtide.advice.options import Advice, RecoveryOption, RecoveryStep

__all__ = [
    "Advice",
    "RecoveryOption",
    "RecoveryStep",
    "advise_on_checkpoint",
    "compare_options",
]
