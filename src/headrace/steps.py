"""How a method of a stream adds a step to its plan: what all of them share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from headrace.building import Building
from headrace.errors import PlanError, nearest
from headrace.expressions import Expr, col, lit, to_expr
from headrace.functions import refuse_async, refuse_no_return, returned_type
from headrace.kernels.aggregate import compile_aggregation
from headrace.kernels.chain import compile_chain, compile_step
from headrace.kernels.row_steps import why_not_native
from headrace.kernels.rows import VALUE, WithValues
from headrace.kernels.window import window_schema
from headrace.plan.groups import GroupBy
from headrace.plan.iteration import Again
from headrace.plan.node import Named, Narrow, Node
from headrace.plan.rows import MapRows, Project
from headrace.plan.sources import Read
from headrace.plan.time import END, START, clock_needed, is_bounded, zone_of
from headrace.trees import AggregateCall
from headrace.types import normal_batch, unique_names
from headrace.windows import AnyWindow

if TYPE_CHECKING:
    from headrace.stream import Stream


@dataclass(frozen=True, eq=False)
class Steps:
    """The end of a plan, and how steps are added to it; see ``headrace.stream.Stream``."""

    node: Node

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return self.node.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.node.schema.names)

    @property
    def bounded(self) -> bool:
        """Whether its input ends."""
        return is_bounded(self.node)

    @property
    def _stream(self) -> Stream:
        """This stream, with all of its methods."""
        raise NotImplementedError

    def _with(self, node: Node) -> Stream:
        """A stream that ends with a step."""
        raise NotImplementedError

    def _building(self, method: str) -> Building:
        return Building(self.node.step + 1, method)

    def _function(self, function: Any, *, returns: bool = False) -> None:
        """Refuse what cannot be called, and functions whose results would be lost.

        Args:
            function: What the user passed.
            returns: Whether the step uses what the function returns.
        """
        if not callable(function):
            raise PlanError(f"a function was expected, not {function!r}")
        refuse_async(function)
        if returns:
            refuse_no_return(function)

    def _known(self, *names: str) -> None:
        for name in names:
            if name not in self.schema.names:
                raise PlanError(f"there is no column '{name}'{nearest(str(name), self.columns)}")

    def _columns(
        self, columns: Iterable[Any], named: dict[str, Any]
    ) -> tuple[Stream, list[tuple[str, exp.Expr]]]:
        """Columns a person named: by name, by expression, or computed by a function."""
        items: list[tuple[str, exp.Expr]] = []
        functions: dict[str, Callable[..., Any]] = {}
        for what in columns:
            if isinstance(what, str) and what in self.schema.names:
                items.append((what, col(what).tree))
            elif isinstance(what, str) and what.isidentifier():
                self._known(what)
            elif callable(what) and not isinstance(what, Expr):
                name = getattr(what, "__name__", "key")
                name = "key" if name == "<lambda>" else name
                if name in functions:
                    raise PlanError(f"two functions are called '{name}'; name them: {name}_2=…")
                functions[name] = what
            elif isinstance(what, (str, Expr)):
                tree = to_expr(what).tree
                if tree.find(AggregateCall) is not None:
                    raise PlanError(f"{what!r} is an aggregate; use it in group_by(…).agg(…)")
                default = tree.name if isinstance(tree, exp.Column) else tree.sql(dialect="spark")
                items.append(self._named(default, tree))
            else:
                raise PlanError(
                    f"{what!r} is not a column; use its name, an expression, a function"
                )
        for name, what in named.items():
            if callable(what) and not isinstance(what, Expr):
                functions[name] = what
            elif isinstance(what, Expr):
                items.append((name, what.tree))
            elif isinstance(what, str) and what in self.schema.names:
                items.append((name, col(what).tree))
            elif isinstance(what, str):
                items.append((name, to_expr(what).tree))
            else:
                items.append((name, lit(what).tree))
        # A function's column goes by its own name, unless the stream has that one already.
        computed = {n: f"_{n}" if n in self.schema.names else n for n in functions}
        items += [(n, col(computed[n]).tree) for n in functions]
        twice = [n for n, count in Counter(n for n, _ in items).items() if count > 1]
        if twice:
            raise PlanError(f"the column '{twice[0]}' is named twice")
        stream = self._computed({computed[n]: f for n, f in functions.items()})
        return stream, items

    def _named(self, default: str, tree: exp.Expr) -> tuple[str, exp.Expr]:
        return (tree.alias, tree.this) if isinstance(tree, exp.Alias) else (default, tree)

    def _computed(self, functions: dict[str, Callable[..., Any]]) -> Stream:
        """This stream with a column for each Python function of a row."""
        if not functions:
            return self._stream
        step, after = self.node.step + 1, self.schema
        for name, function in functions.items():
            with Building(step, f"{name}="):
                self._function(function, returns=True)
            kind = returned_type(function, self._sample, f"step {step}, {name}=")
            unique_names([*after.names, name])
            after = after.append(pa.field(name, kind))
        extend = WithValues(tuple(functions.values()), self.columns == [VALUE])
        return self._rows(MapRows(after, step, self.node, extend, "map"))

    def _rows(self, step: MapRows) -> Stream:
        """Add a step with a function of a record, which must compile if that was asked for."""
        why = why_not_native(step, self.schema) if step.native else None
        if why is not None:
            raise PlanError(
                f"{step.detail} cannot be native: {why}; change that, or leave out hr.native to "
                "run it as Python"
            )
        return self._with(step)

    def _project(self, items: Sequence[tuple[str, Any]], method: str, step: int) -> Stream:
        unique_names([n for n, _ in items])
        return self._narrow(Project(self.schema, step, self.node, tuple(items), method))

    def _narrow(self, step: Narrow) -> Stream:
        """Add a step of expressions, compiled here to check it and to learn its columns."""
        _, after = compile_step(step, self.schema)
        return self._with(replace(step, schema=after, step=max(step.step, self.node.step + 1)))

    def _group(
        self,
        keys: Named,
        aggregates: Any,
        method: str,
        step: int,
        window: AnyWindow | None = None,
    ) -> Stream:
        times = () if window is None else (START, END)
        unique_names([*(n for n, _ in keys), *times, *(n for n, _ in aggregates)])
        functions = {n: f for _, a in aggregates for n, f in a.functions}
        if functions:
            bare = tuple((n, replace(a, functions=())) for n, a in aggregates)
            return self._computed(functions)._group(keys, bare, method, step, window)
        aggregates = tuple((n, a.bound(self.schema.names)) for n, a in aggregates)
        clock = None if window is None else clock_needed(self.node, "a window")
        step = max(step, self.node.step + 1)
        node = GroupBy(self.schema, step, self.node, keys, tuple(aggregates), method, window, clock)
        schema = compile_aggregation(node, self.schema).result_schema
        if clock is not None:
            kind = self.schema.field(clock.columns[0]).type
            schema = window_schema(schema, len(keys), kind)
        return self._with(replace(node, schema=schema))

    def _sample(self, splits: int = 4) -> pa.RecordBatch | None:
        """Some records as they leave this step, if they can be had by reading a little."""
        steps: list[Narrow] = []
        node = self.node
        while isinstance(node, Narrow):
            if not (isinstance(node, MapRows) and node.method == "inspect"):
                steps.append(node)
            node = node.input
        if isinstance(node, Again):
            example = self._with(node.like)._sample(splits)
            if example is None or not example.num_rows:
                return None
            return compile_chain(steps[::-1], node.schema, zone=zone_of(node.like))(example)
        if not isinstance(node, Read) or not node.source.bounded:
            return None
        chain = compile_chain(steps[::-1], node.schema, zone=zone_of(node))
        for split in node.source.splits(1)[:splits]:
            for tried, batch in enumerate(split.read(node.schema.names)):
                if not isinstance(batch, pa.RecordBatch):
                    continue
                batch = normal_batch(batch.slice(0, 1000), node.schema)
                batch = chain(batch.select(list(chain.columns)))
                if batch.num_rows:
                    return batch.slice(0, 20)
                if tried >= 4:
                    break
        return None
