"""A Spark checkpoint folder, read and explained without Spark: neither pyspark nor a JVM here."""
