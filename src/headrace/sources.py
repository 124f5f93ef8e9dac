"""Where streams begin: files, tables, lists, functions, and what an engine already has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas  # pyarrow imports it with its first array; here Ctrl-C waits for it  # noqa: F401
import pyarrow as pa

from headrace.errors import PlanError
from headrace.functions import annotated, as_schema, element_type
from headrace.hints import keywords
from headrace.io.csv import CsvSource
from headrace.io.files import MAX_LINE, Reopen
from headrace.io.folder import FolderSource
from headrace.io.json import JsonSource
from headrace.io.kafka import KafkaSource
from headrace.io.memory import GeneratedSource, TableSource, infer_schema, table_of
from headrace.io.parquet import ParquetSource
from headrace.io.rate import RateSource
from headrace.io.redis import RedisSource
from headrace.io.registry import find
from headrace.io.socket import SocketSource
from headrace.io.source import SourceLike, as_source
from headrace.io.text import TextSource
from headrace.plan.sources import External, Read
from headrace.secrets import Secret
from headrace.sizes import is_whole
from headrace.stream import Stream
from headrace.types import normal_schema


def from_source(source: SourceLike) -> Stream:
    """A stream of any source; see ``headrace.io.source`` for how to write one."""
    known = as_source(source)
    if known is None:
        raise PlanError(
            f"{source!r} is not a source: it needs a schema, and splits(parallelism); "
            "see headrace.io.source"
        )
    return Stream(Read(normal_schema(known.schema), 1, known))


def read(format: str, *args: Any, **options: Any) -> Stream:
    """A stream in a format found by name, ours or one an installed package brings."""
    kind = find("headrace.sources", format)
    try:
        return from_source(getattr(kind, "open", kind)(*args, **options))
    except TypeError as error:
        raise PlanError(f"read('{format}'): {error}") from None


@keywords
def read_text(
    path: Any,
    *,
    encoding: str = "utf-8",
    on_error: str = "raise",
    max_line: Any = MAX_LINE,
    follow: bool = False,
    limit: int | None = None,
    until: str | None = None,
) -> Stream:
    """Lines of text, in the column ``line``. Paths may be globs, folders or lists; ``.gz`` and
    ``.zst`` are decompressed. Large files are read in parallel. A line longer than ``max_line``
    is a bad record, and ``on_error`` says what to do with one, as in ``read_csv``.

    With ``follow=True`` it is a stream that does not end: the files of a folder or glob as they
    appear, at most ``limit`` files in one batch. A file must appear whole, so move it in. It ends
    when a file named ``until`` (such as ``_DONE``) is there and all others have been read.
    """
    options = {"encoding": encoding, "on_error": on_error, "max_line": max_line}
    return _files("text", path, options, None, follow, limit, until)


def _files(
    kind: str,
    path: Any,
    options: dict[str, Any],
    schema: Any,
    follow: bool,
    limit: int | None,
    until: str | None,
) -> Stream:
    """Files that are there, or a folder of files to come."""
    if follow:
        return from_source(
            FolderSource.open(path, kind, options, schema=schema, limit=limit, until=until)
        )
    for name, value in (("limit", limit), ("until", until)):
        if value is not None:
            raise PlanError(f"read_{kind}: {name}= is for a folder that grows; pass follow=True")
    stream = from_source(_SOURCES[kind].open(path, **options))
    known = options | ({"schema": stream.schema} if "schema" in options else {})
    assert isinstance(stream.node, Read)
    return Stream(replace(stream.node, reopen=Reopen(_SOURCES[kind], path, known)))


_SOURCES: dict[str, Any] = {
    "text": TextSource,
    "csv": CsvSource,
    "json": JsonSource,
    "parquet": ParquetSource,
}


@keywords
def read_csv(
    path: Any,
    *,
    schema: Any = None,
    header: bool = True,
    delimiter: str = ",",
    quote: str | None = '"',
    null: str | Sequence[str] = (),
    multiline: bool = False,
    on_error: str = "raise",
    max_line: Any = MAX_LINE,
    follow: bool = False,
    limit: int | None = None,
    until: str | None = None,
) -> Stream:
    """CSV files. Column types come from the first records unless ``schema=`` gives them.

    An empty field is null, or ``''`` in a string column; ``null`` names further words for null.
    A line end within quotes needs ``multiline=True``, which reads each file in one piece.
    ``on_error`` says what to do with a record that does not fit, or is longer than ``max_line``:
    raise, skip, or keep it in ``.errors``. ``follow``, ``limit`` and ``until`` are as in
    ``read_text``.
    """
    options = {
        "schema": schema,
        "header": header,
        "delimiter": delimiter,
        "quote": quote,
        "null": null,
        "multiline": multiline,
        "on_error": on_error,
        "max_line": max_line,
    }
    return _files("csv", path, options, schema, follow, limit, until)


@keywords
def read_json(
    path: Any,
    *,
    schema: Any = None,
    on_error: str = "raise",
    max_line: Any = MAX_LINE,
    follow: bool = False,
    limit: int | None = None,
    until: str | None = None,
) -> Stream:
    """JSON lines: one object a line; anything else is a bad record. ``schema``, ``on_error`` and
    ``max_line`` are as in ``read_csv``, ``follow``, ``limit`` and ``until`` as in ``read_text``."""
    options = {"schema": schema, "on_error": on_error, "max_line": max_line}
    return _files("json", path, options, schema, follow, limit, until)


@keywords
def read_parquet(
    path: Any,
    *,
    follow: bool = False,
    limit: int | None = None,
    until: str | None = None,
    schema: Any = None,
) -> Stream:
    """Parquet files, row group by row group; only the columns a pipeline uses are read.

    Row groups whose statistics rule out the filters right after this step are skipped. A file that
    is damaged, or has pages that do not fit into ``hr.Box(memory=)``, is refused with its name; on
    Spark the limit is a quarter of the machine's memory, at most 2 GB.
    ``follow``, ``limit`` and ``until`` are as in ``read_text``; a folder to follow that has no
    files yet needs ``schema``.
    """
    if schema is not None and not follow:
        raise PlanError("read_parquet: files have their own schema; it is for follow=True")
    return _files("parquet", path, {}, schema, follow, limit, until)


@keywords
def rate(
    per_second: int, *, splits: int = 1, upto: int | None = None, limit: int | None = None
) -> Stream:
    """``per_second`` records a second: ``value`` counts from 0, ``at`` is when each was due.

    It ends after ``upto`` records, if that is given; ``limit`` bounds what a batch takes.
    """
    return from_source(RateSource.open(per_second, splits=splits, upto=upto, limit=limit))


@keywords
def read_kafka(
    topic: str,
    *,
    servers: str = "localhost:9092",
    schema: Any = None,
    format: str = "json",
    start: str = "earliest",
    limit: int | None = None,
    on_error: str = "raise",
    config: Mapping[str, Any] | None = None,
) -> Stream:
    """The messages of a Kafka topic, a split for each partition.

    Messages are JSON objects with the columns of ``schema``, or in one column ``value`` with
    ``format="text"`` or ``"bytes"``. ``start`` is where a new job begins; ``limit`` bounds the
    messages of one batch; ``config`` is for the client library.
    """
    return from_source(
        KafkaSource.open(
            topic, servers=servers, schema=schema, format=format, start=start, limit=limit,
            on_error=on_error, config=config,
        )
    )  # fmt: skip


@keywords
def read_redis(
    keys: str | Sequence[str],
    *,
    schema: Any,
    url: str | Secret = "redis://localhost:6379",
    limit: int | None = None,
) -> Stream:
    """The entries of one or more Redis streams, a split for each; ``schema`` names their fields."""
    return from_source(RedisSource.open(keys, schema=schema, url=url, limit=limit))


@keywords
def read_socket(host: str, port: int, *, limit: int | None = None) -> Stream:
    """Lines of text from a TCP server, in the column ``line``; at most ``limit`` in one batch."""
    return from_source(SocketSource.open(host, port, limit=limit))


def from_arrow(data: Any) -> Stream:
    """A pyarrow table or batch, or anything that speaks Arrow's C stream."""
    return from_source(TableSource.of(data))


def from_pandas(frame: Any) -> Stream:
    """A pandas DataFrame, without its index."""
    return from_source(TableSource.of(frame))


def from_polars(frame: Any) -> Stream:
    """A Polars DataFrame or LazyFrame."""
    return from_source(TableSource.of(frame.collect() if hasattr(frame, "collect") else frame))


@keywords
def from_items(items: Iterable[Any], *, schema: Any = None) -> Stream:
    """A list or any iterable of dicts, dataclasses, named tuples or plain values.

    Plain values get the column ``value``. An iterator is read once, now.
    """
    known = None if schema is None else as_schema(schema)
    return from_source(TableSource.of(table_of(items, known, "from_items")))


@keywords
def generate(
    function: Callable[[int, int], Iterable[Any]], splits: int, *, schema: Any = None
) -> Stream:
    """Records that ``function(rank, splits)`` yields, in parallel: RStream's parallel source.

    Each rank's function runs in a worker. It may yield records, or whole Arrow batches.
    """
    if not callable(function):
        raise PlanError(f"generate: a function was expected, not {function!r}")
    if not is_whole(splits):
        raise PlanError(f"generate: splits is a positive number, not {splits!r}")
    if schema is not None:
        known = as_schema(schema)
    elif (said := element_type(annotated(function))) is not None and said is not pa.RecordBatch:
        known = as_schema(said)
    else:
        first = next(iter(function(0, splits)), None)
        if isinstance(first, (pa.RecordBatch, pa.Table)):
            known = normal_schema(first.schema)
        else:
            known = infer_schema([first], "generate")
    return from_source(GeneratedSource(function, splits, known))


def from_spark(frame: Any) -> Stream:
    """A Spark DataFrame. Steps of expressions over it stay plain Spark columns."""
    from headrace.spark.columns import frame_schema

    return Stream(External(frame_schema(frame), 1, "spark", frame))
