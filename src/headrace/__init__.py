"""Headrace: one streaming pipeline in Python, on Spark or on one machine, with the same answer.

>>> import headrace as hr
>>> from headrace import col
>>> counts = (
...     hr.from_items([{"line": "to be or not to be"}])
...     .flat_map(col("line").lower().split(r"\\W+"), name="word")
...     .group_by("word").agg(n=hr.count())
... )
>>> counts
Stream(word: string, n: bigint)
"""

from headrace import types
from headrace.aggregates import (
    aggregate,
    approx_distinct,
    collect,
    count,
    count_distinct,
    first,
    last,
    max,
    mean,
    min,
    std,
    sum,
    top_k,
    var,
)
from headrace.box.engine import Box
from headrace.box.transforms import Transform
from headrace.errors import (
    BadRecord,
    EngineError,
    ExpressionError,
    HeadraceError,
    PlanError,
    StepError,
)
from headrace.expressions import (
    Expr,
    array,
    call,
    coalesce,
    col,
    concat,
    greatest,
    hash_of,
    least,
    lit,
    sql,
    struct,
    when,
)
from headrace.io.source import Watermark
from headrace.jobs import Job, Progress, start
from headrace.keyed import KeyedStream, WindowedStream
from headrace.read import (
    from_arrow,
    from_items,
    from_pandas,
    from_polars,
    from_source,
    from_spark,
    generate,
    rate,
    read,
    read_csv,
    read_json,
    read_parquet,
    read_socket,
    read_text,
)
from headrace.spark.engine import Spark
from headrace.stream import Stream
from headrace.windows import session, sliding, tumbling

__version__ = "0.1.0"

__all__ = [
    "BadRecord",
    "Box",
    "EngineError",
    "Expr",
    "ExpressionError",
    "HeadraceError",
    "Job",
    "KeyedStream",
    "PlanError",
    "Progress",
    "Spark",
    "StepError",
    "Stream",
    "Transform",
    "Watermark",
    "WindowedStream",
    "aggregate",
    "approx_distinct",
    "array",
    "call",
    "coalesce",
    "col",
    "collect",
    "concat",
    "count",
    "count_distinct",
    "first",
    "from_arrow",
    "from_items",
    "from_pandas",
    "from_polars",
    "from_source",
    "from_spark",
    "generate",
    "greatest",
    "hash_of",
    "last",
    "least",
    "lit",
    "max",
    "mean",
    "min",
    "rate",
    "read",
    "read_csv",
    "read_json",
    "read_parquet",
    "read_socket",
    "read_text",
    "session",
    "sliding",
    "sql",
    "start",
    "std",
    "struct",
    "sum",
    "top_k",
    "tumbling",
    "types",
    "var",
    "when",
]
