"""Create a bucket as soon as the store answers."""

import sys
import time

import s3fs
from botocore.exceptions import BotoCoreError


def create(bucket: str) -> bool:
    """Create it if it is not there; False if the store does not answer yet."""
    try:
        store = s3fs.S3FileSystem()
        if not store.exists(bucket):
            store.mkdir(bucket)
    except (OSError, BotoCoreError) as error:
        sys.stderr.write(f"{error}\n")
        return False
    return True


if __name__ == "__main__":
    while not create(sys.argv[1]):
        time.sleep(2)
