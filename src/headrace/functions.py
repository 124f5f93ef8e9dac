"""People's Python functions as steps: what they return, and how they reduce and fold."""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import typing
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import cloudpickle
import pyarrow as pa

from headrace.aggregates import Aggregate, UserAggregate
from headrace.errors import PlanError
from headrace.expressions import col
from headrace.io.memory import infer_schema
from headrace.kernels.rows import FAILURES, VALUE, failure, record_values, row_class, rows_of
from headrace.plan.node import function_name
from headrace.plan.rows import NATIVE
from headrace.types import arrow_table, record_fields, to_schema, to_type

Sample = Callable[[], pa.RecordBatch | None]
"""Asks for some records as they reach the function; None where that would need a run."""


def native(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a record that must run as native code: ``stream.map(hr.native(f))``.

    Functions in ``map``, ``flat_map``, ``filter``, columns and ``scan`` are compiled where they
    can be. One marked so is refused when the pipeline is built if it cannot, with the reason.
    """
    if not isinstance(function, FunctionType):
        raise PlanError(f"hr.native takes a function that is written in Python, not {function!r}")
    code, known = function.__code__, function.__globals__
    copied = FunctionType(
        code, known, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(copied, function)
    del copied.__dict__["__wrapped__"]
    setattr(copied, NATIVE, True)
    return copied


def refuse_async(function: Any) -> None:
    """Refuse ``async def``: calling it gives a coroutine, which no step would run."""
    called = _called(function)
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise PlanError(
            f"{function_name(function)} is an async def, which a pipeline does not await; use a "
            "plain def, and asyncio.run(…) inside it for code that must be awaited"
        )


def refuse_no_return(function: Any) -> None:
    """Refuse a function that never returns a value, where a step needs one."""
    code = getattr(_called(function), "__code__", None)
    if code is None or code.co_name == "<lambda>" or inspect.isgeneratorfunction(_called(function)):
        return
    if _returns_only_none(code):
        raise PlanError(
            f"{function_name(function)} returns None for every record; add a return statement, or "
            "use inspect or for_each if it is called for what it does"
        )


def _called(function: Any) -> Any:
    """The Python function that a call runs: inside a partial, or an object's ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    is_object = not hasattr(function, "__code__") and not isinstance(function, type)
    return type(function).__call__ if is_object else function


def _returns_only_none(code: CodeType) -> bool:
    """Whether a function has a return, and each of them returns the constant None."""
    before: dis.Instruction | None = None
    found = []
    for each in dis.get_instructions(code):
        if each.opname == "RETURN_CONST":
            found.append(each.argval is None)
        elif each.opname == "RETURN_VALUE":
            constant = before is not None and before.opname == "LOAD_CONST"
            found.append(constant and before is not None and before.argval is None)
        before = each
    return bool(found) and all(found)


def _refuse_native(*functions: Any) -> None:
    """Refuse a mark that would do nothing."""
    if any(getattr(each, NATIVE, False) for each in functions):
        raise PlanError(
            "its function runs as Python; hr.native is for functions in map, flat_map, filter, "
            "columns and scan"
        )


def annotated(function: Callable[..., Any]) -> Any:
    """The type a function says it returns; None if it does not say."""
    target = function.func if isinstance(function, functools.partial) else function
    if not hasattr(target, "__annotations__") and callable(target):
        target = type(target).__call__
    try:
        said = typing.get_type_hints(target).get("return")
    except (NameError, TypeError):
        return None
    return None if said in (None, typing.Any, type(None), dict, list, tuple) else said


def element_type(said: Any) -> Any:
    """What an annotation such as ``Iterator[Word]`` or ``list[Word]`` yields."""
    arguments = typing.get_args(said)
    return arguments[0] if arguments and typing.get_origin(said) is not dict else None


def as_schema(kind: Any, name: str = VALUE) -> pa.Schema:
    """The columns of a returned type: a record's fields, or one column for a plain value."""
    inner = [a for a in typing.get_args(kind) if a is not type(None)]
    if len(inner) == 1 and len(typing.get_args(kind)) == 2 and record_fields(inner[0]):
        kind = inner[0]  # Optional[Record]
    if record_fields(kind) is not None or isinstance(kind, (pa.Schema, dict)):
        return to_schema(kind)
    return pa.schema([pa.field(name, to_type(kind))])


def returned_schema(
    function: Callable[..., Any], schema: Any, sample: Sample, where: str, *, many: bool
) -> pa.Schema:
    """The columns a function gives: as told, as annotated, or as an example run shows."""
    if schema is not None:
        return as_schema(schema)
    said = annotated(function)
    if many and said is not None:
        said = element_type(said)
    if said is not None and said not in (dict, tuple):
        return as_schema(said)
    results: list[Any] = []
    for row in example_rows(sample, where):
        try:
            result = function(row)
            results.extend(result) if many else results.append(result)
        except FAILURES as error:
            raise PlanError(f"{failure(where, error, row)}") from error
    if results and all(result is None for result in results):
        raise PlanError(
            f"{where}: {function_name(function)} returned None for the first {len(results)} "
            "records; return a value, or pass schema= (-> int for a column) if null is meant"
        )
    return infer_schema(results, where)


def returned_type(function: Callable[..., Any], sample: Sample, where: str) -> pa.DataType:
    """The type of the value a function gives for a record."""
    said = annotated(function)
    if said is not None:
        return to_type(said)
    batch = sample()
    if batch is None or not batch.num_rows:
        raise PlanError(
            f"{where}: the type it returns is not known, and there are no records here to try it "
            "on; annotate what it returns: def f(row) -> int"
        )
    found = returned_schema(function, None, sample, where, many=False)
    return found.field(0).type if found.names == [VALUE] else pa.struct(list(found))


def batch_schema(
    function: Callable[..., Any], schema: Any, sample: Sample, where: str
) -> pa.Schema:
    """The columns a function of a bundle gives."""
    _refuse_native(function)
    if schema is not None:
        return to_schema(schema)
    batch = sample()
    if batch is None or batch.num_rows == 0:
        raise PlanError(_NO_EXAMPLE.format(where=where))
    try:
        table = arrow_table(function(batch))
    except FAILURES as error:
        raise PlanError(f"{failure(where, error, None, 'an example bundle')}") from error
    return to_schema(table.schema)


_NO_EXAMPLE = (
    "{where}: the columns it returns are not known, and there are no records here to try it on; "
    "annotate what it returns (-> int, -> a dataclass), or pass schema={{'x': 'bigint'}}"
)


def example_rows(sample: Sample, where: str) -> list[Any]:
    """Some records to try a function on."""
    batch = sample()
    if batch is None or batch.num_rows == 0:
        raise PlanError(_NO_EXAMPLE.format(where=where))
    return list(rows_of(batch))


def _guarded(function: Callable[..., Any], label: str) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        try:
            return function(*args)
        except FAILURES as error:
            raise failure(label, error, args[-1]) from error

    return run


def reduction(
    function: Callable[..., Any], schema: pa.Schema, label: str, *, pickled: bool = False
) -> Aggregate:
    """``reduce``: records joined two by two, in input order; as a pickle if it is for a person."""
    _refuse_native(function)
    names = tuple(schema.names)
    guarded = _guarded(function, label)

    def record(result: Any) -> Any:
        return (
            result if names == (VALUE,) else row_class(names)(*record_values(result, list(names)))
        )

    def partial(*columns: pa.Array) -> Any:
        batch = pa.RecordBatch.from_arrays(list(columns), schema=schema)
        return functools.reduce(lambda a, b: record(guarded(a, b)), rows_of(batch))

    def merge(a: Any, b: Any) -> Any:
        return record(guarded(a, b))

    def finish(state: Any) -> Any:
        if pickled:
            return cloudpickle.dumps(state)
        return state if names == (VALUE,) else state.asdict()

    returns = schema.field(0).type if names == (VALUE,) else pa.struct(list(schema))
    returns = pa.binary() if pickled else returns
    user = UserAggregate("reduce", partial, merge, finish, returns, (function,))
    return Aggregate("user", tuple(col(n).tree for n in names), user=user)


def folding(
    initial: Any,
    function: Callable[..., Any],
    merge: Callable[..., Any] | None,
    returns: Any,
    schema: pa.Schema,
    label: str,
    *,
    pickled: bool = False,
) -> Aggregate:
    """``fold``: a state taken through the records in input order.

    Without ``merge`` two states cannot be joined, so the records of a group are first brought
    together and then folded one by one.
    """
    _refuse_native(function, merge)
    names = tuple(schema.names)
    guarded = _guarded(function, label)
    kind = pa.binary() if pickled else _state_type(initial, function, returns, label)

    def rows(columns: tuple[pa.Array, ...]) -> Any:
        return rows_of(pa.RecordBatch.from_arrays(list(columns), schema=schema))

    def run(records: Any) -> Any:
        return functools.reduce(guarded, records, copy.deepcopy(initial))

    def finish(state: Any) -> Any:
        result = run(state) if merge is None else state
        return cloudpickle.dumps(result) if pickled else result

    if merge is None:
        partial: Callable[..., Any] = lambda *c: list(rows(c))  # noqa: E731
        joined: Callable[..., Any] = lambda a, b: a + b  # noqa: E731
    else:
        partial, joined = lambda *c: run(rows(c)), _guarded(merge, label)
    user = UserAggregate("fold", partial, joined, finish, kind, (initial, function, merge))
    return Aggregate("user", tuple(col(n).tree for n in names), user=user)


def _state_type(initial: Any, function: Callable[..., Any], returns: Any, label: str) -> Any:
    """The type of a fold's result: as told, as annotated, or as the first state shows it."""
    said = annotated(function) if returns is None else returns
    if said is not None:
        return to_type(said)
    try:
        kind = pa.scalar(initial).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        kind = pa.null()
    if pa.types.is_null(kind) or pa.types.is_nested(kind):
        raise PlanError(f"{label}: the type of the state is not known; pass returns='bigint'")
    return kind
