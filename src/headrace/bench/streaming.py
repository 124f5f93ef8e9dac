"""The same workloads as a hand-written Spark Structured Streaming query over files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from headrace.apps.grep import PATTERN
from headrace.errors import PlanError
from headrace.windows import AnyWindow, Window

FILE_RECORDS = 50_000


def write_files(tables: dict[str, pa.Table], folder: Path) -> None:
    """The input as files of 50 000 records, as they would land in a folder."""
    for name, table in tables.items():
        (folder / name).mkdir(parents=True)
        for i, start in enumerate(range(0, table.num_rows, FILE_RECORDS)):
            part = table.slice(start, FILE_RECORDS)
            pq.write_table(part, folder / name / f"{i:06d}.parquet", use_dictionary=False)


def pyspark_job(
    app: str,
    tables: dict[str, pa.Table],
    window: AnyWindow | None,
    session: Any,
    files_a_batch: int | None,
) -> tuple[Callable[[], pa.Table], Callable[[], None]]:
    """A streaming query over files, ``files_a_batch`` of them at a time, and what cleans up."""
    if app not in _QUERIES:
        raise PlanError(f"pyspark: there is no streaming baseline for {app}; use wordcount, netmon")
    if not isinstance(window, Window):
        raise PlanError("pyspark: the baseline has tumbling and sliding windows")
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    write_files(tables, folder)
    name, query, names = _QUERIES[app]
    size, every = (f"{v} microseconds" for v in (window.size, window.every))

    def run() -> pa.Table:
        schema = session.read.parquet(str(folder / name)).schema
        reader = session.readStream.schema(schema)
        if files_a_batch is not None:
            reader = reader.option("maxFilesPerTrigger", files_a_batch)
        stream = reader.parquet(str(folder / name)).withWatermark("at", "0 seconds")
        found: list[pa.Table] = []
        checkpoint = tempfile.mkdtemp(prefix="headrace-bench-")
        writer = (
            query(stream, F.window("at", size, every))
            .writeStream.outputMode("update")
            .foreachBatch(lambda frame, _: found.append(frame.toArrow()))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        writer.awaitTermination()
        shutil.rmtree(checkpoint, ignore_errors=True)
        return _latest(pa.concat_tables(found), names)

    return run, lambda: shutil.rmtree(folder, ignore_errors=True)


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


_QUERIES: dict[str, tuple[str, Callable[[Any, Any], Any], tuple[str, ...]]] = {
    "wordcount": ("lines", _wordcount, ("n",)),
    "netmon": ("pings", _netmon, ("rtt",)),
    "grep": ("reviews", _grep, ("n", "urls")),
}
