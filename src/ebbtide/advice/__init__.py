"""Compare the two ways to recover from wrong results, rewind and reprocess, and recommend one."""

from ebbtide.advice.compare import compare_options
from ebbtide.advice.options import Advice, RecoveryOption, RecoveryStep

__all__ = ["Advice", "RecoveryOption", "RecoveryStep", "compare_options"]
