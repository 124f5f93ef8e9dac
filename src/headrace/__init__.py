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

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.interrupts import import_whole

if TYPE_CHECKING:
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
    from headrace.box.ordered import Ordering
    from headrace.buffers import adaptive, fixed, immediate
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
    from headrace.functions import native
    from headrace.io.source import Watermark
    from headrace.jobs import Job, Progress
    from headrace.keyed import KeyedStream, WindowedStream
    from headrace.operators.custom import Transform
    from headrace.secrets import Secret
    from headrace.sources import (
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
        read_kafka,
        read_parquet,
        read_redis,
        read_socket,
        read_text,
    )
    from headrace.spark.engine import Spark
    from headrace.starting import run, start
    from headrace.state import move_state
    from headrace.stream import Stream
    from headrace.windows import count_window, session, sliding, tumbling
    from headrace.writing import Output

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
    "Ordering",
    "Output",
    "PlanError",
    "Progress",
    "Secret",
    "Spark",
    "StepError",
    "Stream",
    "Transform",
    "Watermark",
    "WindowedStream",
    "adaptive",
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
    "count_window",
    "first",
    "fixed",
    "from_arrow",
    "from_items",
    "from_pandas",
    "from_polars",
    "from_source",
    "from_spark",
    "generate",
    "greatest",
    "hash_of",
    "immediate",
    "last",
    "least",
    "lit",
    "max",
    "mean",
    "min",
    "move_state",
    "native",
    "rate",
    "read",
    "read_csv",
    "read_json",
    "read_kafka",
    "read_parquet",
    "read_redis",
    "read_socket",
    "read_text",
    "run",
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

_HOMES = {
    "headrace.aggregates": (
        "aggregate approx_distinct collect count count_distinct first last max mean min "
        "std sum top_k var"
    ),
    "headrace.box.engine": "Box",
    "headrace.box.ordered": "Ordering",
    "headrace.buffers": "adaptive fixed immediate",
    "headrace.operators.custom": "Transform",
    "headrace.errors": "BadRecord EngineError ExpressionError HeadraceError PlanError StepError",
    "headrace.expressions": (
        "Expr array call coalesce col concat greatest hash_of least lit sql struct when"
    ),
    "headrace.functions": "native",
    "headrace.io.source": "Watermark",
    "headrace.jobs": "Job Progress",
    "headrace.starting": "run start",
    "headrace.writing": "Output",
    "headrace.state": "move_state",
    "headrace.keyed": "KeyedStream WindowedStream",
    "headrace.secrets": "Secret",
    "headrace.sources": (
        "from_arrow from_items from_pandas from_polars from_source from_spark generate "
        "rate read read_csv read_json read_kafka read_parquet read_redis read_socket read_text"
    ),
    "headrace.spark.engine": "Spark",
    "headrace.stream": "Stream",
    "headrace.windows": "count_window session sliding tumbling",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """What is asked for is imported then: a process that needs one part need not load all."""
    if name in _HOME:
        found = getattr(import_whole(_HOME[name]), name)
    elif name == "types":
        found = import_whole("headrace.types")
    else:
        from headrace.errors import nearest
        from headrace.hints import MODULE

        if name in MODULE:
            raise AttributeError(f"headrace has no '{name}': use {MODULE[name]}")
        close = "" if name.startswith("_") else nearest(name, __all__)
        hint = close if close.startswith("; did you mean") else ""
        raise AttributeError(f"headrace has no '{name}'{hint}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
