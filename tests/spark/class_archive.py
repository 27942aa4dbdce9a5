"""Has Java parse the classes that most of Spark's tests load, once: `make` runs it with -XX:ArchiveClassesAtExit.

A Java that begins with this archive needs two thirds of the processor time until its first query is done.
"""

import tempfile

from pyspark.sql import SparkSession
from pyspark.sql.functions import from_json

with tempfile.TemporaryDirectory() as folder:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    rows = spark.createDataFrame([(1, '{"a": 1}')], "number int, body string")
    rows.write.partitionBy("number").parquet(f"{folder}/table")
    table = spark.read.parquet(f"{folder}/table")
    table.select("number", from_json("body", "a int")).groupBy("number").count().orderBy("number").collect()
    stream = spark.readStream.schema(table.schema).parquet(f"{folder}/table").writeStream
    stream.foreachBatch(lambda frame, _: frame.write.mode("append").parquet(f"{folder}/copy")).option(
        "checkpointLocation", f"{folder}/checkpoint"
    ).trigger(availableNow=True).start().awaitTermination()
    spark.stop()
