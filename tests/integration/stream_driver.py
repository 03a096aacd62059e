"""A program with a stream into LaterMQ, which a test kills: arguments are its folder and its topic."""

import sys

from latermq import pipeline

folder, topic = sys.argv[1:]
spark = pipeline.open_session()
rows = spark.readStream.schema("key string").option("maxFilesPerTrigger", 1).json(f"{folder}/in")
timers = rows.selectExpr(f"'{topic}' AS topic", "key", "key AS body", "current_timestamp() + INTERVAL 9 DAYS AS due")
query = (
    timers.writeStream.format("latermq")
    .option("job", topic)
    .option("root", f"{folder}/root")
    .option("checkpointLocation", f"{folder}/ck")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
