"""Runs a guide's blocks one after the other, in an environment that has PySpark and the package and nothing of ours.

`python guides.py FOLDER < STEPS`: each step is a block's place, language, text, and the name of what has to be there
for it: a situation, which sends what the block is to read, and looks at what it left. Only that stands here: what a
reader types is the document's. Ends with 1 and the step's place where a block fails, or leaves something else.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import botocore.session
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

WITHIN_S = 240  # other suites may have the processors
LOOK_EVERY_S = 0.3
COMMENT = re.compile(r"--.*$", re.MULTILINE)
ORDERS = [json.dumps({"id": number, "price": number / 4}) for number in range(3)]

Names = dict[str, Any]  # what the blocks have defined so far


class World:
    """The cloud and the folder that stand for the document's."""

    def __init__(self, folder: Path) -> None:
        session = botocore.session.Session()
        self.folder, self.clone, self.step = folder, Path(__file__).parents[2], 0
        sqs: Any = session.create_client("sqs")
        s3: Any = session.create_client("s3")
        self.sqs, self.s3 = sqs, s3
        s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})

    def url(self, queue: str) -> str:
        """Have the block's own queue of the name: stopped queries' last receives may still hold an earlier one's."""
        fifo = {"Attributes": {"FifoQueue": "true"}} if queue.endswith(".fifo") else {}
        url: str = self.sqs.create_queue(QueueName=f"step-{self.step}-{queue}", **fifo)["QueueUrl"]
        return url

    def send(self, queue: str, *bodies: str) -> None:
        for body in bodies:
            self.sqs.send_message(QueueUrl=self.url(queue), MessageBody=body)

    def received(self, queue: str, count: int) -> list[str]:
        """Bodies of so many messages, deleted as they come."""
        found: list[str] = []
        until(lambda: len(found) >= count or not self._more(queue, found))
        return sorted(found)

    def _more(self, queue: str, found: list[str]) -> bool:
        given = {"MaxNumberOfMessages": 10, "WaitTimeSeconds": 1}
        for message in self.sqs.receive_message(QueueUrl=self.url(queue), **given).get("Messages", ()):
            found.append(message["Body"])
            self.sqs.delete_message(QueueUrl=self.url(queue), ReceiptHandle=message["ReceiptHandle"])
        return True

    def rows(self, spark: Any, table: str) -> int:
        """How many a table has whose query may not have written yet, or an empty batch alone."""
        try:
            count: int = spark.read.parquet(str(self.folder / "tables" / table)).count()
        except AnalysisException:
            return 0
        return count


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(LOOK_EVERY_S)


@contextmanager
def stopped_once(spark: Callable[[], Any], condition: Callable[[Any], bool]) -> Iterator[None]:
    """What a reader does with ctrl-C: the running queries are stopped once they did what they are for."""
    ended, late = threading.Event(), threading.Event()

    def done() -> bool:
        session = spark()
        return session is not None and bool(session.streams.active) and condition(session)

    def watch() -> None:
        deadline = time.monotonic() + WITHIN_S
        try:
            while not ended.wait(LOOK_EVERY_S) and not done():
                if time.monotonic() > deadline:
                    late.set()
                    return
        finally:
            for query in spark().streams.active if spark() else ():
                query.stop()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    assert not late.is_set(), "it takes too long"


@contextmanager
def orders(world: World, names: Names) -> Iterator[None]:
    world.send("orders", *ORDERS)
    with stopped_once(lambda: names.get("spark"), lambda spark: world.rows(spark, "orders") == len(ORDERS)):
        yield
    rows = names["spark"].read.parquet(str(world.folder / "tables/orders")).orderBy("id").collect()
    assert [(row.id, row.price) for row in rows] == [(0, 0.0), (1, 0.25), (2, 0.5)], rows


@contextmanager
def orders_on_s3(world: World, names: Names) -> Iterator[None]:
    """Staged in the cloud's S3. Checkpoint and table are in the folder: what Spark needs for s3a is on Maven alone."""
    world.send("orders", *ORDERS)
    with stopped_once(lambda: names["spark"], lambda spark: world.rows(spark, "on-s3/orders") == len(ORDERS)):
        yield
    staged = world.s3.list_objects_v2(Bucket="bucket", Prefix="staging/orders/segments/")["Contents"]
    assert len(staged) > 1, staged


@contextmanager
def a_batch(world: World, names: Names) -> Iterator[None]:
    """Delta's jars are on Maven alone: the batch is written as Parquet."""
    yield
    names["write"](names["spark"].range(7), 1)
    assert names["spark"].read.parquet(str(world.folder / "orders")).count() == 7


@contextmanager
def orders_to_drain(world: World, names: Names) -> Iterator[None]:
    world.send("orders", *ORDERS)
    yield
    assert (names["drained"].messages, names["drained"].empty) == (len(ORDERS), True)
    assert world.rows(names["spark"], "drained") == len(ORDERS)


@contextmanager
def uploads(world: World, names: Names) -> Iterator[None]:
    """S3's notification is sent by hand, as S3 makes it. The object is a file: see `orders_on_s3`."""
    import gzip  # noqa: PLC0415 - this situation's alone

    key = "sales/day=2026-11-21/shop=Malmö/0017.csv.gz"
    file = world.folder / "uploads" / key
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(b"id,price\n7,1.25\n8,x\n"))
    held = {"key": quote_plus(key, safe="/"), "eTag": "e", "sequencer": "1"}
    record = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "uploads"}, "object": held}}
    world.send("uploads", json.dumps({"Records": [record]}))
    yield
    spark, query = names["spark"], names["query"]
    try:
        until(lambda: world.rows(spark, "on-s3/sales") == 2 or query.exception())
    finally:
        query.stop()
    good, bad = spark.read.parquet(str(world.folder / "tables/on-s3/sales")).orderBy("id").collect()
    assert (good.id, str(good.price), str(good.day), good.shop) == (7, "1.25", "2026-11-21", "Malmö"), good
    assert bad.bad_record == "8,x", bad


@contextmanager
def orders_for_sql(world: World, names: Names) -> Iterator[None]:
    world.send("orders", *ORDERS)
    yield
    assert [row[0] for row in names["results"][1]] == [len(ORDERS)], names["results"]
    assert world.received("orders", 1) == ['{"id": 7}']


@contextmanager
def a_table(world: World, names: Names) -> Iterator[None]:
    """What the view before it staged is read again."""
    yield
    assert sorted(row.body for row in names["results"][1]) == ORDERS, names["results"]
    assert world.received("orders", 1) == ["a"]


@contextmanager
def a_stream_and_a_frame(world: World, names: Names) -> Iterator[None]:
    spark = names["spark"]
    names["frame"] = spark.createDataFrame([("c", 1)], "customer string, id int")
    names["frame"].write.parquet(str(world.folder / "frame"))
    names["stream"] = spark.readStream.schema(names["frame"].schema).parquet(str(world.folder / "frame"))
    yield
    for queue in ("out.fifo", "out"):
        assert [json.loads(body) for body in world.received(queue, 1)] == [{"customer": "c", "id": 1}], queue
    for query in spark.streams.active:
        query.stop()


@contextmanager
def messages(world: World, names: Names) -> Iterator[None]:
    """A stream is there, which is run: of one that is measured the listener prints lines."""
    world.send("orders", *ORDERS)
    yield
    query = names["messages"].writeStream.format("memory").queryName("messages").start()

    def arrived() -> bool:
        assert query.exception() is None, query.exception()
        return bool(names["spark"].table("messages").count() == len(ORDERS))

    try:
        until(arrived)
        until(lambda: bool(query.lastProgress and query.lastProgress["sources"][0]["endOffset"]))
    finally:
        query.stop()


@contextmanager
def a_rate(_: World, names: Names) -> Iterator[None]:
    from sluice_spark.source.rate import RateLimitFunction  # noqa: PLC0415 - this situation's alone

    yield
    asked = RateLimitFunction(names["now"])
    asked.check()
    assert asked() in {2_500, 5_000}


@contextmanager
def messages_to_land(world: World, names: Names) -> Iterator[None]:
    world.send("orders", *ORDERS)
    yield
    landed, compacted = (json.loads(said.splitlines()[-1]) for said in names["results"])
    assert (landed["landed"], landed["quarantined"]) == (len(ORDERS), 0), landed
    assert compacted["files_before"] == compacted["files_after"], compacted  # today's are left alone


@contextmanager
def a_table_that_land_made(world: World, names: Names) -> Iterator[None]:
    """In the clone, where the jobs find what they share with sluice."""
    sys.path.insert(0, str(world.clone))
    names["spark"] = SparkSession.builder.getOrCreate()
    yield
    assert sorted(row.body for row in names["messages"].collect()) == ORDERS


@contextmanager
def other_readers(_: World, names: Names) -> Iterator[None]:
    yield
    assert sorted(names["messages"].to_table(columns=["body"]).column("body").to_pylist()) == ORDERS


SITUATIONS = {
    "orders": orders,
    "orders on S3": orders_on_s3,
    "a batch": a_batch,
    "orders to drain": orders_to_drain,
    "uploads": uploads,
    "a rate": a_rate,
    "messages to land": messages_to_land,
    "a table that land made": a_table_that_land_made,
    "other readers of the table": other_readers,
    "orders for SQL": orders_for_sql,
    "a table": a_table,
    "a stream and a frame": a_stream_and_a_frame,
    "messages": messages,
}


def here(text: str, world: World) -> str:
    """The same block with this machine's places: no other word of it changes."""
    text = re.sub(
        r"https://sqs\.eu-west-1\.amazonaws\.com/123456789012/([\w.]+)", lambda found: world.url(found[1]), text
    )
    text = re.sub(r"s3a://bucket/(\w+)", lambda found: str(world.folder / found[1] / "on-s3"), text)
    text = re.sub(r"s3a://(?=uploads/|')", f"{world.folder}/", text)
    text = re.sub(r"(?<=[\"' ])/data\b", str(world.folder), text)
    return text.replace('.format("delta")', '.format("parquet")')


def said(command: str, folder: Path) -> str:
    """What a command says on stdout, typed in the clone."""
    done = subprocess.run(["bash", "-c", command], cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def run(step: dict[str, str], world: World, names: Names) -> None:
    """One block, as a program, or one by one as statements or commands: what these gave is in `results`."""
    text = here(step["text"], world)
    with SITUATIONS[step["situation"]](world, names):
        if step["language"] == "python":
            exec(compile(text, step["place"], "exec"), names)
        elif step["language"] == "sh":
            typed = re.split(r"(?<!\\)\n", text.strip())
            names["results"] = [said(command, world.clone) for command in typed]
        else:
            statements = [each.strip() for each in COMMENT.sub("", text).split(";")]
            names["results"] = [names["spark"].sql(statement).collect() for statement in statements if statement]


def main() -> int:
    world, names = World(Path(sys.argv[1])), Names()
    for world.step, step in enumerate(json.load(sys.stdin)):
        began = time.monotonic()
        try:
            run(step, world, names)
        except BaseException:  # noqa: BLE001 - a reader would see it too
            traceback.print_exc()
            sys.stderr.write(f"{step['place']}: the block fails\n")
            return 1
        sys.stdout.write(f"{step['place']}: {time.monotonic() - began:.1f} s\n")
    if "spark" in names:
        names["spark"].stop()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a query that is still being stopped doesn't hold it
