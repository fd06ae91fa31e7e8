"""The systems on a Spark cluster, a secured Kafka and an object store."""
