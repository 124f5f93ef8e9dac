"""Names that people bring along from Spark, pandas, Polars and Flink, answered with ours."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, ParamSpec, TypeVar

from headrace.errors import PlanError, nearest

P = ParamSpec("P")
R = TypeVar("R")

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
    """A class that knows what people call its methods elsewhere."""

    __slots__ = ()
    _hints: ClassVar[dict[str, str]] = {}

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


def keywords(function: Callable[P, R]) -> Callable[P, R]:
    """A function that answers a keyword it does not have with the one that was meant."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                meant = KEYWORDS.get(name)
                hint = f"; use {meant}=" if meant in known else nearest(name, known)
                raise PlanError(f"{function.__name__} has no option '{name}'{hint}")
        return function(*args, **kwargs)

    return called
