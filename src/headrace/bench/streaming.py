"""The same workloads as a hand-written Spark Structured Streaming query over files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

import headrace as hr
from headrace.apps import App
from headrace.apps.enrich import catalogue
from headrace.apps.grep import PATTERN
from headrace.bench import stateful
from headrace.errors import PlanError
from headrace.spark.session import with_settings
from headrace.windows import AnyWindow, Window

FILE_RECORDS = 50_000
ORDERED = ("fraud", "spikes", "window_wc")
"""Their baselines keep state by key, and hold no record back for one that comes late."""
DONE = "_DONE"


def write_files(tables: dict[str, pa.Table], folder: Path) -> None:
    """The input as files of 50 000 records, as they would land in a folder."""
    for name, table in tables.items():
        (folder / name).mkdir(parents=True)
        (folder / name / DONE).touch()
        for i, start in enumerate(range(0, table.num_rows, FILE_RECORDS)):
            part = table.slice(start, FILE_RECORDS)
            pq.write_table(part, folder / name / f"{i:06d}.parquet", use_dictionary=False)


@dataclass(frozen=True)
class Files:
    """A workload's input in a folder, for streaming queries of ours and of others."""

    app: App
    window: AnyWindow | None
    folder: Path
    delay: int
    """How late records may come, in seconds."""

    @staticmethod
    def of(app: App, tables: dict[str, pa.Table], window: AnyWindow | None, delay: int) -> Files:
        folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
        write_files(tables, folder)
        return Files(app, window, folder, delay)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def headrace(self, spark: Any, files_a_batch: int | None) -> Callable[[], pa.Table]:
        """Our streaming query, ``files_a_batch`` files at a time."""
        stream = self.app.stream
        assert stream is not None

        def run() -> pa.Table:
            inputs = {
                name.name: hr.read_parquet(name, follow=True, limit=files_a_batch, until=DONE)
                .event_time("at", delay=f"{self.delay}s")
                for name in sorted(self.folder.iterdir())
            }  # fmt: skip
            job = stream.pipeline(inputs, self.window).start(on=spark, trigger="available-now")
            job.wait()
            return job.result()

        return run

    def pyspark(self, session: Any, files_a_batch: int | None) -> Callable[[], pa.Table]:
        """A hand-written streaming query, ``files_a_batch`` files at a time."""
        app = self.app.name
        if app not in _QUERIES:
            known = ", ".join(_QUERIES)
            raise PlanError(f"pyspark: there is no streaming baseline for {app}; use {known}")
        names, query, mode, values = _QUERIES[app]
        window = self.window
        if window is not None and not isinstance(window, Window):
            raise PlanError("pyspark: the baseline has tumbling and sliding windows")
        if app in ORDERED and self.delay:
            raise PlanError(f"pyspark: the baseline of {app} takes records in order; drop --ooo")

        def read(name: str) -> Any:
            path = str(self.folder / name)
            reader = session.readStream.schema(session.read.parquet(path).schema)
            if files_a_batch is not None:
                reader = reader.option("maxFilesPerTrigger", files_a_batch)
            return reader.parquet(path).withWatermark("at", f"{self.delay} seconds")

        def run() -> pa.Table:
            inputs = [read(name) for name in names]
            if isinstance(window, Window):
                size, every = (f"{v} microseconds" for v in (window.size, window.every))
                inputs.append(F.window("at", size, every))
            found: list[pa.Table] = []
            checkpoint = tempfile.mkdtemp(prefix="headrace-bench-")
            writer = (
                query(*inputs)
                .writeStream.outputMode(mode)
                .foreachBatch(lambda frame, _: found.append(frame.toArrow()))
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
            )
            with with_settings(session, stateful.SETTINGS if app in ORDERED else {}):
                running = writer.start()
            running.awaitTermination()
            shutil.rmtree(checkpoint, ignore_errors=True)
            everything = pa.concat_tables(found)
            return _latest(everything, values) if mode == "update" else everything

        return run


def _latest(updates: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """The last update of every key and window: in update mode each batch tells what changed."""
    numbered = updates.append_column("_place", pa.array(range(updates.num_rows), pa.int64()))
    keys = [n for n in updates.schema.names if n not in names]
    last = numbered.group_by(keys).aggregate([("_place", "max")])
    kept = updates.take(last["_place_max"])
    return kept.sort_by([(keys[0], "ascending")]) if kept.num_rows < 1000 else kept


def _wordcount(stream: Any, window: Any) -> Any:
    words = stream.select("at", F.explode(F.split("line", " ")).alias("word"))
    counts = words.groupBy("word", window).agg(F.count("*").alias("n"))
    return counts.select("word", "window.start", "window.end", "n")


def _netmon(stream: Any, window: Any) -> Any:
    means = stream.groupBy("src", "dst", window).agg(F.avg("rtt").alias("rtt"))
    return means.select("src", "dst", "window.start", "window.end", "rtt")


def _grep(stream: Any, window: Any) -> Any:
    urls = F.expr(f"regexp_extract_all(text, '{PATTERN}', 0)")
    found = stream.where(F.col("text").rlike(PATTERN)).select("at", F.explode(urls).alias("url"))
    lists = found.groupBy(window).agg(F.count("*").alias("n"), F.collect_list("url").alias("urls"))
    return lists.select("window.start", "window.end", "n", "urls")


def _enrich(stream: Any, window: Any) -> Any:
    products = F.broadcast(stream.sparkSession.createDataFrame(catalogue()))
    joined = stream.join(products, "product").groupBy("category", window)
    sales = joined.agg(
        F.sum(F.col("pieces") * F.col("price")).alias("sales"), F.count("*").alias("n")
    )
    return sales.select("category", "window.start", "window.end", "sales", "n")


def _join(left: Any, right: Any) -> Any:
    other = right.select(F.col("at").alias("at_right"), F.col("k").alias("k_right"))
    near = F.expr(
        "k = k_right AND at_right BETWEEN at - INTERVAL 500 MILLISECONDS "
        "AND at + INTERVAL 500 MILLISECONDS"
    )
    return left.join(other, near).select("at", "k", "at_right")


_QUERIES: dict[str, tuple[tuple[str, ...], Callable[..., Any], str, tuple[str, ...]]] = {
    "wordcount": (("lines",), _wordcount, "update", ("n",)),
    "netmon": (("pings",), _netmon, "update", ("rtt",)),
    "grep": (("reviews",), _grep, "update", ("n", "urls")),
    "enrich": (("clicks",), _enrich, "update", ("sales", "n")),
    "join": (("left", "right"), _join, "append", ()),
    "fraud": (("transactions",), stateful.fraud, "append", ()),
    "spikes": (("readings",), stateful.spikes, "append", ()),
    "window_wc": (("lines",), stateful.window_wc, "append", ()),
}
"""The inputs, the query, its output mode (update, so that no window is left open at the end, where
there is one), and the columns an update replaces."""
