"""How pipelines run: Java and jars, the Spark session, the stream runner and what it records."""
