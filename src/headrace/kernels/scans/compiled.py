"""A step of ``scan`` compiled by Numba, where its state and all it reads and gives are numbers.

It then runs over all records of a bundle without the interpreter lock. Integers are 64 bits wide
there, and a state that is a NumPy record is changed in place.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import threading
import weakref
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.columns import as_column
from headrace.kernels.rows import VALUE
from headrace.kernels.scans.steps import Records
from headrace.plan.scans import UserStep
from headrace.types import type_name

_NONE = np.zeros(0, np.bool_)


def packed_dtype(initial: Any) -> Any:
    """The NumPy type of a state that is a number, a tuple of numbers or a record; else None."""
    if isinstance(initial, np.void) and initial.dtype.fields:
        return initial.dtype
    if isinstance(initial, tuple) and initial:
        kinds = [_number(each) for each in initial]
        if all(kinds):
            return np.dtype([(f"f{i}", kind) for i, kind in enumerate(kinds)])
        return None
    kind = _number(initial)
    return None if kind is None else np.dtype(kind)


def _number(value: Any) -> str | None:
    if isinstance(value, (bool, np.bool_)):
        return "?"
    if isinstance(value, (int, np.integer)):
        return "i8" if -(2**63) <= value < 2**63 else None
    return "f8" if isinstance(value, (float, np.floating)) else None


class FailedAt(Exception):
    """The row at which a step failed; the cause says why."""


class CompiledStep:
    """A step as a native loop over records."""

    def __init__(
        self,
        loop: Any,
        function: Any,
        dtype: Any,
        columns: list[str],
        record: Any,
        gives: pa.Schema,
    ) -> None:
        self.loop, self.function, self.dtype = loop, function, dtype
        self.columns, self.record, self.gives = columns, record, gives

    def takes(self, batch: pa.RecordBatch) -> bool:
        """Whether all that it reads is there."""
        return not any(batch.column(name).null_count for name in self.columns)

    def run(self, records: Records, states: Any, initial: Any) -> tuple[Any, list[pa.Array]]:
        """Of each output the row it came from, and the columns of the outputs."""
        batch, count = records.batch, records.slots.size
        if self.record is None:
            column = batch.column(VALUE)
            rows = _values(column).astype(_dtype(column.type), copy=False)
        else:
            rows = np.empty(count, self.record)
            for name in self.columns:
                rows[name] = _values(batch.column(name))
        outs = [np.empty(count, _dtype(field.type)) for field in self.gives]
        origin = np.empty(count, np.int64)
        resets = _NONE if records.resets is None else records.resets
        where = np.zeros(1, np.int64)
        try:
            made = self.loop(
                self.function, rows, records.slots, resets, initial, states, where, origin, *outs
            )
        except Exception as error:
            raise FailedAt(int(where[0])) from error
        columns = [_column(out[:made], f.type) for out, f in zip(outs, self.gives, strict=True)]
        return origin[:made], columns


def _values(array: pa.Array) -> Any:
    return array.to_numpy(zero_copy_only=False)


def _dtype(kind: pa.DataType) -> Any:
    """As wide as Python's numbers are: what is computed of them is then the same."""
    if pa.types.is_boolean(kind):
        return np.dtype("?")
    return np.dtype("f8" if pa.types.is_floating(kind) else "i8")


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_float64(kind) or pa.types.is_int64(kind):
        return as_column(values, kind)
    return pa.array(values).cast(kind)


_COMPILED: weakref.WeakKeyDictionary[UserStep, tuple[pa.Schema, CompiledStep | str]] = (
    weakref.WeakKeyDictionary()
)
_COMPILING = threading.Lock()


def compiled_step(what: UserStep, schema: pa.Schema) -> CompiledStep | str:
    """The step compiled, or why it is not, in a few words; once for all shards."""
    with _COMPILING:
        known = _COMPILED.get(what)
        if known is None or not known[0].equals(schema):
            known = _COMPILED[what] = (schema, _compiled_step(what, schema))
        return known[1]


def _compiled_step(what: UserStep, schema: pa.Schema) -> CompiledStep | str:
    if what.batches:
        return "it takes batches"
    if what.timed or what.on_timer is not None:
        return "it has a timer"
    dtype = packed_dtype(what.initial)
    if dtype is None:
        return f"its state is a {type(what.initial).__name__}"
    for field in what.gives:
        if not _is_number(field.type):
            return f"it gives '{field.name}', which is {type_name(field.type)}"
    if not isinstance(what.function, FunctionType) or hasattr(what.function, "__wrapped__"):
        return "it is not a plain function"
    if _indexes(what.function):
        return "it reads a column by its place"
    mentioned = _mentioned(what.function.__code__)
    plain = what.fields == (VALUE,)
    columns = [VALUE] if plain else [n for n in what.fields if n in mentioned]
    for name in columns:
        if not _is_number(schema.field(name).type):
            return f"it reads '{name}', which is {type_name(schema.field(name).type)}"
    kinds = [(name, _dtype(schema.field(name).type)) for name in columns]
    if not kinds:
        kinds = [("_", np.dtype("i8"))]
    record = None if plain else np.dtype(kinds)
    try:
        return _compile(what, dtype, columns, record, kinds)
    except _Unfit as unfit:
        return str(unfit)
    except Exception as error:  # Numba's own are many
        return f"Numba cannot compile it: {_reason(error)}"


def _reason(error: Exception) -> str:
    """The line of Numba's account that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    noise = ("Failed in", "During:", "File ", "There are", "Overload", "-", "<source", "^")
    said = [line for line in lines if not line.startswith(noise)]
    return (said or lines or [type(error).__name__])[0]


def _indexes(function: FunctionType) -> bool:
    """Whether a function has ``row[0]``: the record that it is compiled for has other places."""
    code = function.__code__
    if code.co_argcount < 2:
        return False
    row = code.co_varnames[1]
    last: tuple[Any, Any] = (None, None)
    for each in dis.get_instructions(function):
        # The second is its name from CPython 3.14 on.
        indexes = each.opname == "BINARY_SUBSCR" or each.argrepr == "[]"
        if indexes and last[0] == row and isinstance(last[1], int):
            return True
        last = (last[1], each.argval)
    return False


class _Unfit(Exception):
    """Why a step cannot be compiled."""


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        (pa.types.is_integer(kind) and not pa.types.is_uint64(kind)) or pa.types.is_float64(kind)
        or pa.types.is_float32(kind) or pa.types.is_boolean(kind)
    )  # fmt: skip


def _mentioned(code: CodeType) -> set[str]:
    """The names and texts that a function's code has, which columns may be among."""
    found = set(code.co_names) | {c for c in code.co_consts if isinstance(c, str)}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _mentioned(constant)
        elif isinstance(constant, tuple):
            found |= {c for c in constant if isinstance(c, str)}
    return found


def _compile(
    what: UserStep, dtype: Any, columns: list[str], record: Any, kinds: list[tuple[str, Any]]
) -> CompiledStep:
    import numba
    from numba import types

    row = numba.from_dtype(kinds[0][1] if record is None else record)
    in_place = isinstance(what.initial, np.void)
    function = numba.njit(nogil=True)(_giving_only(what) if in_place else what.function)
    for _ in range(3):
        state = _state_type(dtype, what.initial)
        function.compile((state, row))
        result = function.overloads[(state, row)].signature.return_type
        if in_place:
            output = result
            break
        if not (isinstance(result, types.BaseTuple) and len(result) == 2):
            raise _Unfit("it does not return (state, output) everywhere")
        after, output = result
        wider = _wider(dtype, after, isinstance(what.initial, tuple))
        if wider == dtype:
            break
        dtype = wider
    else:
        raise _Unfit("the type of its state does not settle")
    many = _check_output(output, what.gives)
    loop = _loop(in_place, dtype, isinstance(what.initial, tuple), output, many, len(what.gives))
    names = [] if record is not None and not columns else columns
    return CompiledStep(loop, function, dtype, names, record, what.gives)


def _state_type(dtype: Any, initial: Any) -> Any:
    import numba
    from numba import types

    if isinstance(initial, np.void):
        return numba.from_dtype(dtype)
    if isinstance(initial, tuple):
        return types.Tuple([numba.from_dtype(dtype[i]) for i in range(len(initial))])
    return numba.from_dtype(dtype)


def _wider(dtype: Any, after: Any, plural: bool) -> Any:
    """The type of a state that is what it was or what it becomes: 0 may become 0.5."""
    from numba import types
    from numba.np.numpy_support import as_dtype

    def one(before: Any, kind: Any) -> Any:
        if isinstance(kind, types.Literal):
            kind = kind.literal_type
        if not isinstance(kind, (types.Integer, types.Float, types.Boolean)):
            raise _Unfit(f"its state becomes {kind}")
        now = as_dtype(kind)
        if now.kind == "b" or before.kind == "b":
            if now.kind != before.kind:
                raise _Unfit("its state is a bool and then a number")
            return before
        return np.dtype("f8") if "f" in (now.kind, before.kind) else np.dtype("i8")

    if not plural:
        return one(dtype, after)
    if not isinstance(after, types.BaseTuple) or len(after) != len(dtype):
        raise _Unfit("its state does not stay a tuple of as many numbers")
    return np.dtype([(f"f{i}", one(dtype[i], each)) for i, each in enumerate(after)])


def _check_output(output: Any, gives: pa.Schema) -> bool:
    """Whether an output is a tuple; refuses what cannot be written as it is."""
    from numba import types

    count = len(gives)
    inner = output.type if isinstance(output, types.Optional) else output
    if isinstance(inner, types.NoneType):
        raise _Unfit("it never gives anything")
    if isinstance(inner, types.BaseTuple):
        if len(inner) != count:
            raise _Unfit(f"it gives {len(inner)} values where the schema has {count}")
        parts = list(inner)
    else:
        if count != 1:
            raise _Unfit(f"it gives one value where the schema has {count}")
        parts = [inner]
    for part, field in zip(parts, gives, strict=True):
        kind = part.literal_type if isinstance(part, types.Literal) else part
        if not isinstance(kind, (types.Integer, types.Float, types.Boolean)):
            raise _Unfit(f"it gives a {part}")
        fits = (
            pa.types.is_boolean(field.type)
            if isinstance(kind, types.Boolean)
            else pa.types.is_floating(field.type)
            or (isinstance(kind, types.Integer) and pa.types.is_int64(field.type))
        )
        if not fits:
            raise _Unfit(f"it gives a {kind} for '{field.name}', a {type_name(field.type)}")
    return isinstance(inner, types.BaseTuple)


@functools.lru_cache(maxsize=64)
def _loop_text(
    fields: tuple[tuple[str, tuple[int, ...]], ...],
    plural: int,
    optional: bool,
    many: bool,
    count: int,
) -> str:
    """The loop over records; ``fields`` are a state's that is a record, with their shapes."""
    outs = [f"out{i}" for i in range(count)]
    lines = [
        f"def loop(f, rows, slots, resets, initial, states, where, origin, {', '.join(outs)}):",
        "    made = 0",
        "    for i in range(slots.size):",
        "        where[0] = i",
        "        slot = slots[i]",
        "        if resets.size > 0 and resets[i]:",
    ]
    for name, shape in fields:  # one by one: a slice takes Numba two seconds to compile
        indent = "            "
        for i, size in enumerate(shape):
            lines.append(f"{indent}for i{i} in range({size}):")
            indent += "    "
        place = f"[{', '.join(f'i{i}' for i in range(len(shape)))}]" if shape else ""
        lines.append(f"{indent}states[slot][{name!r}]{place} = initial[0][{name!r}]{place}")
    if not fields:
        lines.append("            states[slot] = initial[0]")
    if fields:
        lines.append("        output = f(states[slot], rows[i])")
    elif plural:
        values = ", ".join(f"states[slot].f{i}" for i in range(plural))
        lines.append(f"        state, output = f(({values},), rows[i])")
        lines += [f"        states[slot].f{i} = state[{i}]" for i in range(plural)]
    else:
        lines.append("        state, output = f(states[slot], rows[i])")
        lines.append("        states[slot] = state")
    indent = "        "
    if optional:
        lines += ["        if output is not None:", "            there = unwrapped(output)"]
        indent += "    "
    else:
        lines.append("        there = output")
    for i, out in enumerate(outs):
        lines.append(f"{indent}{out}[made] = there{f'[{i}]' if many else ''}")
    lines += [f"{indent}origin[made] = i", f"{indent}made += 1", "    return made"]
    return "\n".join(lines)


def _loop(in_place: bool, dtype: Any, plural: bool, output: Any, many: bool, count: int) -> Any:
    import numba
    from numba import types

    fields = tuple((n, dtype[n].shape) for n in dtype.names) if in_place else ()
    optional = isinstance(output, types.Optional)
    text = _loop_text(fields, len(dtype) if plural else 0, optional, many, count)
    made: dict[str, Any] = {"unwrapped": _unwrapped()}
    exec(text, made)
    return numba.njit(nogil=True)(made["loop"])


@functools.cache
def _unwrapped() -> Any:
    """What is there of a value that may be None, where it is known not to be."""
    from numba import types
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def unwrapped(context: Any, value: Any) -> Any:
        kind = value.type if isinstance(value, types.Optional) else value

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return arguments[0]

        return kind(kind), code

    return unwrapped


class _OutputOnly(ast.NodeTransformer):
    """``return state, output`` becomes ``return output``: the state is changed in place."""

    def __init__(self, state: str) -> None:
        self.state = state

    def visit_Return(self, node: ast.Return) -> ast.Return:
        value = node.value
        first = value.elts[0] if isinstance(value, ast.Tuple) and len(value.elts) == 2 else None
        if not (isinstance(first, ast.Name) and first.id == self.state):
            raise _Unfit(f"a state that is a record is changed in place: return {self.state}, …")
        assert isinstance(value, ast.Tuple)
        return ast.copy_location(ast.Return(value.elts[1]), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.body = [self.visit(each) for each in node.body]
        node.decorator_list, node.returns = [], None
        for argument in node.args.args:
            argument.annotation = None
        return node


def _returns(body: list[ast.stmt]) -> bool:
    """Whether statements always end in a return, or an error."""
    last = body[-1]
    if isinstance(last, ast.If):
        return _returns(last.body) and bool(last.orelse) and _returns(last.orelse)
    return isinstance(last, (ast.Return, ast.Raise))


def _giving_only(what: UserStep) -> Any:
    """The step as a function of the output alone."""
    if what.source is None:
        raise _Unfit("its source cannot be read, and its state is a record")
    tree = ast.parse(what.source)
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise _Unfit("its state is a record, and it is not a def")
    state = definition.args.args[0].arg
    rebound = any(
        isinstance(n, ast.Name) and n.id == state and isinstance(n.ctx, ast.Store)
        for n in ast.walk(definition)
    )
    if rebound:
        raise _Unfit(f"it gives '{state}' another value, where a record is changed in place")
    if not _returns(definition.body):
        raise _Unfit("it may end without a return")
    module = ast.Module([_OutputOnly(state).visit(definition)], [])
    function = what.function
    enclosed = inspect.getclosurevars(function).nonlocals
    names = {**function.__globals__, **enclosed}
    exec(compile(ast.fix_missing_locations(module), "<step>", "exec"), names)
    return names[definition.name]
