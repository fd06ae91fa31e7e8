"""Print what spark-submit needs to run Ebbtide: its jars and its application.

spark-submit --master spark://host:7077 $(python -m ebbtide.runtime.submit s3a) run visits-counter
"""

from __future__ import annotations

import sys
from pathlib import Path

from ebbtide.errors import EbbtideError
from ebbtide.runtime import java

APPLICATION = Path(__file__).parents[1] / "__main__.py"


def submit_words(*, s3a: bool) -> list[str]:
    """The arguments of spark-submit before those of `ebbtide`."""
    jars = [*java.jars("spark"), *(java.s3a_jars() if s3a else [])]
    return [*(["--jars", ",".join(map(str, jars))] if jars else []), str(APPLICATION)]


if __name__ == "__main__":
    try:
        print(*submit_words(s3a="s3a" in sys.argv[1:]))  # noqa: T201
    except EbbtideError as error:
        sys.exit(f"Error: {error}")
