"""A PySpark program as people write them for Spark Connect, with a line of Ebbtide's for each way.

python connect_job.py FOLDER ADDRESS: three queries over the same files, until there is a file
`stop`. It does not stop its session, as many do not.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

import ebbtide

FOLDER, ADDRESS = Path(sys.argv[1]), sys.argv[2]

spark = SparkSession.builder.remote(ADDRESS).getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "UTC")
spark.conf.set("spark.sql.streaming.checkpointLocation", str(FOLDER / "checkpoints"))


def read() -> DataFrame:
    stream = spark.readStream.schema("at TIMESTAMP, n INT").option("maxFilesPerTrigger", 1)
    return stream.json(str(FOLDER / "in"))


def start(name: str, rows: DataFrame, **options: str) -> StreamingQuery:
    writer = rows.writeStream.queryName(name).format("parquet")
    return writer.start(str(FOLDER / name), **options)


one = start("one", ebbtide.observe(read(), event_time="at"))
ebbtide.attach(one, checkpoint=FOLDER / "checkpoints" / "one")
ebbtide.attach(spark)
watermarked = read().withWatermark("at", "1 minute")
windows = watermarked.groupBy(F.window("at", "1 minute")).agg(F.count("*").alias("rows"))
two = start("two", windows, checkpointLocation=str(FOLDER / "elsewhere" / "two"))
three = start("three", read())
while not (FOLDER / "stop").exists():
    time.sleep(0.1)
for query in (one, two, three):
    query.stop()
