"""Names that people bring along from Spark, pandas, Polars and Flink, answered with ours."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, ParamSpec, TypeVar

from headrace.errors import PlanError, nearest

P = ParamSpec("P")
R = TypeVar("R")

_PIVOT = (
    "name the columns, one aggregate for each: group_by('day').agg(east=hr.sum(\"if(zone = 'east', "
    'fare, 0)"), …); or aggregate first, and pivot the table that to_polars() gives'
)
_AS_OF = "use join_within(other, on='column', …), which joins records that are near in time"
_UNPIVOT = "use flat_map with a function that yields one record for each column"
STREAM = {
    "withColumn": "use with_columns(name=expression)",
    "with_column": "use with_columns(name=expression)",
    "withColumns": "use with_columns(name=expression)",
    "withColumnRenamed": "use rename(old='new')",
    "assign": "use with_columns(name=expression)",
    "mutate": "use with_columns(name=expression)",
    "where": "use filter(condition)",
    "query": "use filter(condition)",
    "groupBy": "use group_by('column')",
    "groupby": "use group_by('column')",
    "keyBy": "use key_by('column')",
    "orderBy": "use sort('column'), or sort('column', descending=True)",
    "order_by": "use sort('column'), or sort('column', descending=True)",
    "sort_values": "use sort('column'), or sort('column', descending=True)",
    "sort_by": "use sort('column'), or sort('column', descending=True)",
    "selectExpr": "use select('x * 2 as y')",
    "flatMap": "use flat_map(function or list expression)",
    "explode": "use flat_map(list expression, keep=True)",
    "mapInArrow": "use map_batches(function of an Arrow batch)",
    "map_partitions": "use map_batches(function of an Arrow batch)",
    "mapPartitions": "use map_batches(function of an Arrow batch)",
    "apply": "use map(function of a row), or map_batches(function of an Arrow batch)",
    "dropDuplicates": "use distinct(), or distinct('column')",
    "drop_duplicates": "use distinct(), or distinct('column')",
    "unique": "use distinct(), or distinct('column')",
    "unionAll": "use union(other)",
    "concat": "use union(other)",
    "merge": "use join(other, on='column')",
    "withWatermark": "use event_time('column', delay='10s')",
    "assign_timestamps_and_watermarks": "use event_time('column', delay='10s')",
    "repartition": "use shuffle(), or max_parallelism(n)",
    "coalesce": "use max_parallelism(n)",
    "head": "use limit(n).to_list(), or show(n)",
    "take": "use limit(n).to_list()",
    "first": "use limit(1).to_list(), or agg(hr.first('column'))",
    "tail": "use sort(…, descending=True).limit(n)",
    "toPandas": "use to_pandas()",
    "to_arrow": "use collect()",
    "toArrow": "use collect()",
    "rows": "use to_list()",
    "iter_rows": "use to_list(), or for_each(function)",
    "foreach": "use for_each(function)",
    "foreachBatch": "use for_each_batch(function).start()",
    "foreach_batch": "use for_each_batch(function).start()",
    "printSchema": "print the stream, or see its schema",
    "dtypes": "see its schema",
    "writeStream": "use write_parquet(…), write_kafka(…) and so on, then start()",
    "execute": "use start(), or collect() for input that ends",
    "run": "use start(), or collect() for input that ends",
    "cache": "what several steps read after an exchange is computed once already",
    "persist": "what several steps read after an exchange is computed once already",
    "sum": "use agg(total=hr.sum('column'))",
    "mean": "use agg(mean=hr.mean('column'))",
    "min": "use agg(least=hr.min('column'))",
    "max": "use agg(most=hr.max('column'))",
    "aggregate": "use agg(n=hr.count())",
    "count_window": "use window(hr.count_window(10, every=5))",
    "countWindow": "use window(hr.count_window(10, every=5))",
    "countWindowAll": "use window(hr.count_window(10, every=5))",
    "pivot": _PIVOT,
    "pivot_table": _PIVOT,
    "crosstab": _PIVOT,
    "unpivot": _UNPIVOT,
    "melt": _UNPIVOT,
    "stack": _UNPIVOT,
    "dropna": "use filter(col('x').is_not_null())",
    "drop_nulls": "use filter(col('x').is_not_null())",
    "drop_nans": "use filter('not isnan(x)')",
    "fillna": "use with_columns(x=col('x').fill_null(value))",
    "fill_null": "use with_columns(x=col('x').fill_null(value))",
    "na": "use with_columns(x=col('x').fill_null(value)), or filter(col('x').is_not_null())",
    "cast": "use with_columns(x=col('x').cast('bigint'))",
    "astype": "use with_columns(x=col('x').cast('bigint'))",
    "describe": "use agg(mean=hr.mean('x'), least=hr.min('x'), most=hr.max('x'))",
    "summary": "use agg(mean=hr.mean('x'), least=hr.min('x'), most=hr.max('x'))",
    "value_counts": "use group_by('column').count()",
    "n_unique": "use agg(n=hr.count_distinct('column'))",
    "nunique": "use agg(n=hr.count_distinct('column'))",
    "sample": "use filter(hr.hash_of('id') % 10 == 0)",
    "rolling": "use window(hr.sliding('30s', every='1s')).agg(…)",
    "group_by_dynamic": "use window(hr.tumbling('1 minute')).agg(…)",
    "resample": "use window(hr.tumbling('1 minute')).agg(…)",
    "cumsum": "use running(total=hr.sum('column'))",
    "cum_sum": "use running(total=hr.sum('column'))",
    "shift": "use lag(before='column') or lead(after='column')",
    "diff": "use lag(before='column'), then with_columns(change=col('column') - col('before'))",
    "over": "use key_by(…), then window(…) or agg(…)",
    "iterrows": "use to_list(), or for_each(function)",
    "itertuples": "use to_list(), or for_each(function)",
    "toLocalIterator": "use for_each(function)",
    "to_dict": "use collect().to_pydict()",
    "to_dicts": "use collect().to_pylist()",
    "to_numpy": "use to_pandas().to_numpy()",
    "toDF": "use to_pandas() or to_polars()",
    "to_df": "use to_pandas() or to_polars()",
    "iloc": "use limit(n), filter(condition) or select('column')",
    "loc": "use limit(n), filter(condition) or select('column')",
    "shape": "use count() for the records and columns for the names",
    "height": "use count()",
    "width": "it is len(stream.columns)",
    "collect_schema": "see its schema",
    "lazy": "a stream is lazy already; collect() computes it",
    "pipe": "call the function itself: function(stream)",
    "with_row_index": "use key_by('column').rank(), which numbers the records of each key",
    "row_number": "use key_by('column').rank(), which numbers the records of each key",
    "crossJoin": "add the same constant column to both streams and join on it",
    "cross_join": "add the same constant column to both streams and join on it",
    "join_asof": _AS_OF,
    "merge_asof": _AS_OF,
    "asof_join": _AS_OF,
    "interval_join": "use join_within(other, on='column', …)",
    "intervalJoin": "use join_within(other, on='column', …)",
    "intersect": "use join(other, on=[…], how='semi')",
    "subtract": "use join(other, on=[…], how='anti')",
    "exceptAll": "use join(other, on=[…], how='anti')",
    "is_empty": "use limit(1).count() == 0",
    "isEmpty": "use limit(1).count() == 0",
    "sql": "use select('x * 2 as y') and filter('x > 0'): they take Spark SQL expressions",
    "createOrReplaceTempView": "use select and filter, which take Spark SQL expressions",
    "rdd": "use map(function of a row), or map_batches(function of an Arrow batch)",
    "foreachPartition": "use map_batches(function of an Arrow batch)",
    "map_elements": "use map(function of a row)",
    "map_rows": "use map(function of a row)",
    "process": "use key_by('column').scan(function, state=0), or transform(make)",
    "nlargest": "use top_k(n, 'column')",
    "bottom_k": "use sort('column').limit(n)",
    "nsmallest": "use sort('column').limit(n)",
    "vstack": "use union(other)",
    "hstack": "use zip(other)",
    "with_watermark": "use event_time('column', delay='10s')",
    "assign_watermark": "use event_time('column', delay='10s')",
    "sink_parquet": "use write_parquet(path)",
    "sink_csv": "use write_csv(path)",
    "sink_ndjson": "use write_json(path)",
    "to_parquet": "use write_parquet(path)",
    "to_csv": "use write_csv(path)",
    "to_json": "use write_json(path)",
    "add_sink": "use write_to(sink)",
    "sink_to": "use write_to(sink)",
    "print": "use show(), or write_console().start() for input that does not end",
    "awaitTermination": "use start().wait()",
    "reduceByKey": "use key_by('column').reduce(function)",
    "reduce_by_key": "use key_by('column').reduce(function)",
    "groupByKey": "use key_by('column')",
    "countByKey": "use group_by('column').count()",
    "mapValues": "use map(function of a row)",
    "flatMapValues": "use flat_map(function of a row)",
}
_NOT_YET = "say first what to compute of each: agg(n=hr.count()), reduce or fold; then {}"
KEYED = {
    name: _NOT_YET.format(f"{name}(…)")
    for name in (
        "collect", "to_pandas", "to_polars", "to_list", "show", "start", "write_parquet",
        "write_csv", "write_json", "write_kafka", "write_redis", "write_postgres", "write_console",
        "for_each", "for_each_batch", "sort", "limit", "select", "with_columns", "join",
    )
} | {
    "sum": "use agg(total=hr.sum('column'))",
    "mean": "use agg(mean=hr.mean('column'))",
    "avg": "use agg(mean=hr.mean('column'))",
    "min": "use agg(least=hr.min('column'))",
    "max": "use agg(most=hr.max('column'))",
    "aggregate": "use agg(n=hr.count())",
    "size": "use count()",
    "tumbling": "use window(hr.tumbling('1 minute'))",
    "sliding": "use window(hr.sliding('30s', every='1s'))",
    "session": "use window(hr.session('30 minutes'))",
    "count_window": "use window(hr.count_window(10, every=5))",
    "countWindow": "use window(hr.count_window(10, every=5))",
    "apply": "use map_batches(function of an Arrow batch)",
    "pivot": _PIVOT,
    "event_time": "call event_time right after the source, before key_by and window",
    "processing_time": "call processing_time right after the source, before key_by and window",
    "time_zone": "call time_zone right after the source, before key_by and window",
}  # fmt: skip
WINDOWED = KEYED | {
    "key_by": "call key_by before window",
    "group_by": "call key_by before window",
    "map_batches": "use fold, or agg with hr.aggregate(partial, merge, finish)",
}
EXPRESSION = {
    "isin": "use is_in([…])",
    "isNull": "use is_null()",
    "isna": "use is_null()",
    "isNotNull": "use is_not_null()",
    "notna": "use is_not_null()",
    "fillna": "use fill_null(value)",
    "eqNullSafe": "use same_as(other)",
    "startswith": "use starts_with(text)",
    "startsWith": "use starts_with(text)",
    "endswith": "use ends_with(text)",
    "endsWith": "use ends_with(text)",
    "rlike": "use matches(pattern)",
    "substr": "use substring(start, length)",
    "astype": "use cast(type)",
    "name": "use alias(name)",
    "str": "functions of text are here: lower(), split(…), contains(…)",
    "dt": "functions of time are here: hour(), truncate(…), year()",
    "list": "functions of lists are here: size(), element(…), has(…)",
    "desc": "use sort('column', descending=True)",
    "asc": "use sort('column')",
    "over": "use key_by(…), then window(…) or agg(…)",
    "getField": "use field(name)",
    "getItem": "use element(index)",
    "when": "use hr.when(condition).then(value).otherwise(value)",
    "sum": "it is an aggregate: agg(total=hr.sum(column))",
    "mean": "it is an aggregate: agg(mean=hr.mean(column))",
    "count": "it is an aggregate: agg(n=hr.count())",
}
MODULE = {
    "avg": "hr.mean('column')",
    "average": "hr.mean('column')",
    "stddev": "hr.std('column')",
    "variance": "hr.var('column')",
    "countDistinct": "hr.count_distinct('column')",
    "nunique": "hr.count_distinct('column')",
    "approx_count_distinct": "hr.approx_distinct('column')",
    "collect_list": "hr.collect('column')",
    "collect_set": "hr.count_distinct('column'), or distinct('column')",
    "expr": "hr.sql('x * 2'), or the text itself",
    "F": "hr.col, hr.lit, hr.sum and so on",
    "functions": "hr.col, hr.lit, hr.sum and so on",
    "udf": "the function itself, wherever an expression may stand",
    "window": "stream.window(hr.tumbling('1 minute'))",
    "Window": "stream.window(hr.tumbling('1 minute'))",
    "TumblingWindow": "hr.tumbling('1 minute')",
    "SlidingWindow": "hr.sliding('30s', every='1s')",
    "session_window": "hr.session('30 minutes')",
    "countWindow": "hr.count_window(10, every=5)",
    "CountWindow": "hr.count_window(10, every=5)",
    "CountTumblingWindowAssigner": "hr.count_window(10)",
    "CountSlidingWindowAssigner": "hr.count_window(10, every=5)",
    "from_dicts": "hr.from_items([{…}])",
    "from_list": "hr.from_items([…])",
    "DataFrame": "hr.from_items([{…}]), hr.from_arrow(table) or hr.from_pandas(frame)",
    "scan_csv": "hr.read_csv(path)",
    "scan_parquet": "hr.read_parquet(path)",
    "scan_ndjson": "hr.read_json(path)",
    "readStream": "hr.read_parquet(path, follow=True), hr.read_kafka(topic, schema=…) and so on",
    "SparkSession": "hr.Spark(master=…), or nothing: it is the default",
}
KEYWORDS = {
    "engine": "on",
    "checkpoint_location": "checkpoint",
    "checkpointLocation": "checkpoint",
    "checkpoint_dir": "checkpoint",
    "processingTime": "trigger",
    "interval": "trigger",
    "sink": "to",
    "sep": "delimiter",
    "separator": "delimiter",
    "quotechar": "quote",
    "quote_char": "quote",
    "na_values": "null",
    "null_values": "null",
    "nullValue": "null",
    "dtype": "schema",
    "dtypes": "schema",
    "columns": "schema",
    "has_header": "header",
    "bootstrap_servers": "servers",
    "brokers": "servers",
    "starting_offsets": "start",
    "startingOffsets": "start",
    "errors": "on_error",
    "on_bad_lines": "on_error",
    "ascending": "descending",
    "by": "on",
    "step": "every",
    "slide": "every",
    "length": "size",
}


class Hinted:
    """A class that answers the names, options and operators of other libraries with its own."""

    __slots__ = ()
    _hints: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Check the options of every public method; see ``keywords``."""
        super().__init_subclass__(**options)
        for name in dir(cls):
            method = inspect.getattr_static(cls, name)
            if not name.startswith("_") and inspect.isfunction(method):
                setattr(cls, name, keywords(method))

    def __getattr__(self, name: str) -> Any:
        what = type(self).__name__
        if name in type(self)._hints:
            raise AttributeError(f"{what} has no '{name}': {type(self)._hints[name]}")
        if name.startswith("_"):
            raise AttributeError(name)
        known = [n for n in dir(type(self)) if not n.startswith("_")]
        close = nearest(name, known)
        hint = close if close.startswith("; did you mean") else ""
        raise AttributeError(f"{what} has no '{name}'{hint}")


class NotACollection:
    """Answers ``x["column"]``, ``len(x)``, ``for row in x`` and ``"column" in x``.

    There is no ``__iter__``: it would make a stream an ``Iterable``. Python falls back on
    ``__getitem__`` with 0.
    """

    __slots__ = ()

    def __getitem__(self, key: Any) -> NoReturn:
        what = type(self).__name__
        if not hasattr(type(self), "select"):
            raise TypeError(f"a {what} has no records yet: compute some with agg(n=hr.count())")
        if isinstance(key, int):
            raise TypeError(
                f"a {what} cannot be iterated over or indexed: its records are computed when asked "
                "for; use to_list(), collect() or for_each(function), and .columns for the names"
            )
        if isinstance(key, slice):
            raise TypeError(f"a {what} cannot be sliced; use limit(n), or to_list() and slice that")
        names = [key] if isinstance(key, str) else key
        if isinstance(names, list) and all(isinstance(n, str) for n in names):
            shown = ", ".join(map(repr, names))
            raise TypeError(
                f"a {what} cannot be indexed by column; use select({shown}), or col({names[0]!r}) "
                "within an expression"
                if names
                else f"a {what} cannot be indexed; use select('column')"
            )
        raise TypeError(f"a {what} cannot be indexed; use filter(condition) or select('column')")

    def __len__(self) -> NoReturn:
        """Refuse; never defined on its own, or an ``if stream:`` would fail."""
        raise TypeError(
            f"a {type(self).__name__} has no length: its records are computed when asked for; use "
            "count(), or len(stream.columns) for the number of columns"
        )

    def __bool__(self) -> bool:
        return True


def keywords(function: Callable[P, R]) -> Callable[P, R]:
    """A function that answers a keyword it does not have with the one that was meant."""
    parameters = inspect.signature(function).parameters.values()
    if hasattr(function, "__wrapped__") or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return function  # it is checked already, or takes any keyword
    known = [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_POSITIONAL]

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                meant = KEYWORDS.get(name)
                hint = f"; use {meant}=" if meant in known else nearest(name, known)
                raise PlanError(f"{function.__name__} has no option '{name}'{hint}")
        return function(*args, **kwargs)

    return called
