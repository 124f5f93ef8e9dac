"""The same workloads as DuckDB's and Polars' users write them, in one batch over memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.apps.grep import PATTERN
from headrace.errors import PlanError
from headrace.windows import AnyWindow, Window

Peer = Callable[[], pa.Table]


def installed(name: str) -> Any:
    """A peer's package."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise PlanError(f"--against {name}: it is not installed; pip install {name}") from None


def _window(window: AnyWindow | None) -> Window:
    if not isinstance(window, Window):
        raise PlanError("the baselines know tumbling and sliding windows")
    return window


def _spans(window: Window) -> tuple[str, str]:
    """DuckDB's words for the start of a record's windows, and for their length."""
    every, size = f"INTERVAL {window.every} MICROSECONDS", f"INTERVAL {window.size} MICROSECONDS"
    last = f"time_bucket({every}, \"at\", TIMESTAMPTZ '1970-01-01 00:00:00+00')"
    if window.size == window.every:
        return last, size
    steps = -(-window.size // window.every)
    return f"unnest([{last} - i * {every} for i in range({steps})])", size


def duckdb_job(app: str, tables: dict[str, pa.Table], window: AnyWindow | None) -> Peer:
    """A query over tables that DuckDB has loaded."""
    duckdb = installed("duckdb")
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name, table in tables.items():
        connection.register("incoming", table)
        connection.execute(f'CREATE TABLE "{name}" AS SELECT * FROM incoming')
        connection.unregister("incoming")
    if app == "join":
        query = (
            'SELECT a.at, a.k, b.at AS at_right FROM "left" a JOIN "right" b ON a.k = b.k '
            'AND b."at" BETWEEN a."at" - INTERVAL 500 MILLISECONDS '
            'AND a."at" + INTERVAL 500 MILLISECONDS'
        )
    else:
        span = _window(window)
        start, size = _spans(span)
        inner = f'"at" >= window_start AND "at" < window_start + {size}'
        query = _DUCKDB[app].format(start=start, size=size, inside=inner, pattern=PATTERN)

    def run() -> pa.Table:
        return connection.sql(query).to_arrow_table()

    return run


_DUCKDB = {
    "wordcount": """
        WITH w AS (SELECT {start} AS window_start, "at", line FROM lines),
        t AS (SELECT window_start, unnest(string_split(line, ' ')) AS word FROM w WHERE {inside})
        SELECT word, window_start, window_start + {size} AS window_end, count(*) AS n
        FROM t GROUP BY ALL""",
    "netmon": """
        SELECT src, dst, {start} AS window_start, window_start + {size} AS window_end,
        avg(rtt) AS rtt FROM pings GROUP BY ALL""",
    "distinct": """
        WITH w AS (SELECT {start} AS window_start, url FROM visits)
        SELECT window_start, window_start + {size} AS window_end, count(DISTINCT url) AS urls
        FROM w GROUP BY window_start""",
    "grep": """
        WITH m AS (SELECT "at", regexp_extract_all(text, '{pattern}') AS found FROM reviews
                   WHERE regexp_matches(text, '{pattern}')),
        u AS (SELECT "at", unnest(found) AS url FROM m),
        w AS (SELECT {start} AS window_start, "at", url FROM u)
        SELECT window_start, window_start + {size} AS window_end, count(*) AS n,
        list(url ORDER BY "at") AS urls FROM w WHERE {inside} GROUP BY 1, 2""",
}


def polars_job(app: str, tables: dict[str, pa.Table], window: AnyWindow | None) -> Peer:
    """A lazy query over frames in memory, on Polars' streaming engine."""
    pl = installed("polars")
    frames = {name: pl.from_arrow(table).lazy() for name, table in tables.items()}
    span = None if app == "join" else _window(window)
    if span is not None and span.size != span.every:
        raise PlanError("polars: the baseline has tumbling windows only; pass --window 1s")
    starts = pl.col("at").dt.truncate(f"{span.every}us") if span is not None else None

    def timed(frame: Any) -> Any:
        assert span is not None
        end = pl.col("window_start") + pl.duration(microseconds=span.size)
        return frame.with_columns(window_end=end)

    if app == "wordcount":
        split = frames["lines"].select(window_start=starts, word=pl.col("line").str.split(" "))
        query = timed(split.explode("word").group_by("word", "window_start").agg(n=pl.len()))
        names = ["word", "window_start", "window_end", "n"]
    elif app == "netmon":
        pings = frames["pings"].with_columns(window_start=starts)
        query = timed(pings.group_by("src", "dst", "window_start").agg(pl.col("rtt").mean()))
        names = ["src", "dst", "window_start", "window_end", "rtt"]
    elif app == "distinct":
        visits = frames["visits"].with_columns(window_start=starts)
        query = timed(visits.group_by("window_start").agg(urls=pl.col("url").n_unique()))
        names = ["window_start", "window_end", "urls"]
    elif app == "grep":
        text = pl.col("text")
        kept = frames["reviews"].filter(text.str.contains(PATTERN))
        urls = kept.select(window_start=starts, url=text.str.extract_all(PATTERN)).explode("url")
        query = timed(urls.group_by("window_start").agg(n=pl.len(), urls=pl.col("url")))
        names = ["window_start", "window_end", "n", "urls"]
    else:
        raise PlanError(f"polars: there is no baseline for {app}")

    def run() -> pa.Table:
        return query.select(names).collect(engine="streaming").to_arrow()

    return run
