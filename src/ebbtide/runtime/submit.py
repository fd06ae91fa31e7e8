"""Print what spark-submit needs to run Ebbtide: its jars and its application.

spark-submit --master spark://host:7077 $(python -m ebbtide.runtime.submit s3a) run visits-counter
"""

from __future__ import annotations

import sys
from pathlib import Path

from ebbtide.errors import EbbtideError

APPLICATION = Path(__file__).parents[1] / "__main__.py"


def submit_words(*, s3a: bool) -> list[str]:
    """The arguments of spark-submit before those of `ebbtide`."""
    from ebbtide.runtime import cluster  # without pyspark, this says how to install it

    settings = cluster.outer_settings()
    jars = [str(jar) for jar in cluster.connector_jars(settings, ["s3a://"] if s3a else [])]
    if jars and (own := settings.get("spark.jars")):
        jars.append(own)  # --jars replaces those of spark-defaults.conf
    return [*(["--jars", ",".join(jars)] if jars else []), str(APPLICATION)]


if __name__ == "__main__":
    try:
        print(*submit_words(s3a="s3a" in sys.argv[1:]))  # noqa: T201
    except EbbtideError as error:
        sys.exit(f"Error: {error}")
