"""Which columns a chain of steps really needs, so that a source reads no others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from headrace.plan.joins import LookUp
from headrace.plan.node import Narrow
from headrace.plan.partitions import Buffered
from headrace.plan.rows import Explode, Filter, MapBatches, MapMemo, MapRows, Project, Route
from headrace.plan.table_join import TableJoin
from headrace.plan.time import EventTime


def columns_of(trees: Iterable[exp.Expr]) -> set[str]:
    """The columns that expressions read."""
    return {column.parts[0].name for tree in trees for column in tree.find_all(exp.Column)}


def prune(
    steps: Sequence[Narrow], names: Sequence[str], needed: Iterable[str] | None
) -> tuple[list[Narrow], list[str]]:
    """The steps without the columns nobody asks for, and the columns they read of ``names``.

    ``needed`` are the columns wanted at the end; None means all of them.
    """
    wanted = None if needed is None else set(needed)
    kept: list[Narrow] = []
    for step in reversed(steps):
        if isinstance(step, Project):
            columns = tuple(c for c in step.columns if wanted is None or c[0] in wanted)
            columns = columns or step.columns[:1]  # a bundle must keep its number of rows
            kept.append(replace(step, columns=columns))
            wanted = columns_of(tree for _, tree in columns)
        elif isinstance(step, Filter):
            if wanted is not None:  # only what is used later is copied
                schema = step.schema
                step = replace(step, schema=pa.schema([f for f in schema if f.name in wanted]))
                wanted = wanted | columns_of([step.condition])
            kept.append(step)
        elif isinstance(step, Route):
            kept.append(step)
            if step.python:
                wanted = None
            elif wanted is not None:
                trees = [c.function for c in step.conditions if isinstance(c.function, exp.Expr)]
                wanted = wanted - {step.column} | columns_of(trees)
        elif isinstance(step, Buffered):
            continue  # it changes no record
        elif isinstance(step, EventTime):
            kept.append(step)
            if wanted is not None:
                wanted = wanted - {step.column} if step.by_clock else wanted | {step.column}
                if isinstance(step.punctuation, exp.Expr):
                    wanted = wanted | columns_of([step.punctuation])
                elif step.punctuation is not None:
                    wanted = None
        elif isinstance(step, Explode):
            keep = step.keep if wanted is None else tuple(k for k in step.keep if k in wanted)
            kept.append(replace(step, keep=keep))
            wanted = set(keep) | columns_of([step.elements])
        elif isinstance(step, TableJoin):
            step = step if wanted is None else _fewer(step, wanted)
            kept.append(step)
            wanted = step.as_join.reads(0)
        elif isinstance(step, LookUp):
            kept.append(step)
            wanted = step.join.reads(1 - step.side)
        elif isinstance(step, MapMemo):
            kept.append(step)
            if wanted is not None:
                wanted = wanted - set(step.names) | columns_of(tree for _, tree in step.key)
        else:
            assert isinstance(step, (MapRows, MapBatches))
            kept.append(step)
            wanted = None
    read = [n for n in names if wanted is None or n in wanted]
    return kept[::-1], read or list(names[:1])


def _fewer(step: TableJoin, wanted: set[str]) -> TableJoin:
    """A join with a table that gives just some columns, one at least."""
    fields = [f for f in step.schema if f.name in wanted] or [step.schema.field(step.left_on[0])]
    renamed = tuple(pair for pair in step.renamed if pair[1] in wanted)
    return replace(step, schema=pa.schema(fields), renamed=renamed)
