"""Put into an image what Ebbtide would else download or write at its first start."""

import sys
from pathlib import Path

from ebbtide.runtime import compiler, java

SETS = ("spark", "s3a")
"""Kafka and Delta, and S3."""


def main(target: Path) -> None:
    """Resolve the jars, link them into one folder for a class path, and write the launcher."""
    target.mkdir()
    for jar in (compiler.own_jar(), *(jar for set_ in SETS for jar in java.jars(set_))):
        (target / jar.name).symlink_to(jar)
    java.spark_java_home()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
