"""What a compiled function gives: its results as values of the columns that the step promised."""

from __future__ import annotations

import ast
import dataclasses
from types import FunctionType
from typing import Any

import numpy as np
import pyarrow as pa
from llvmlite import ir

from headrace.kernels.compiled.arithmetic import as_float
from headrace.kernels.compiled.code import Code
from headrace.kernels.compiled.expressions import Any_, Expressions, Restart, Scope
from headrace.kernels.compiled.statements import Statements
from headrace.kernels.compiled.values import (
    F32,
    I1,
    I8,
    I64,
    NOTHING,
    NUMBERS,
    Kind,
    Row,
    Thing,
    Unfit,
    Value,
    kind_of,
)
from headrace.types import type_name


class Output:
    """A column that a function gives."""

    def __init__(self, field: pa.Field, nullable: set[str]) -> None:
        kind = kind_of(field.type)
        if kind is None:
            raise Unfit(f"it gives '{field.name}', which is {type_name(field.type)}")
        self.field, self.kind = field, kind
        self._nullable = nullable
        self.nulls = field.name in nullable
        """Whether it may be null."""
        self.refused: Kind | None = None
        self.taken = False
        """Whether it takes what the function gives in some place."""
        self.width = 8 if kind in (Kind.BOOL, Kind.TEXT) else field.type.bit_width

    @property
    def dtype(self) -> Any:
        """What its values are written as; of text, where it lies."""
        if self.kind is Kind.BOOL:
            return np.dtype("u1")
        if self.kind is Kind.FLOAT:
            return np.dtype(f"f{self.width // 8}")
        return np.dtype("i8" if self.kind is Kind.TEXT else f"i{self.width // 8}")

    def fit(self, value: Value, c: Code) -> Value | None:
        """A result as a value of this column; None where Python would refuse it, too.

        The results of records that are left to the interpreter are checked as all results are.
        """
        fitted = value if value.kind is Kind.NONE else self._fit(value, c)
        if fitted is None:
            self.refused = value.kind
            return None
        self.taken = True
        if fitted.there is not None and not self.nulls:
            self._nullable.add(self.field.name)
            raise Restart
        return fitted

    def _fit(self, value: Value, c: Code) -> Value | None:
        if self.kind is Kind.INT and value.kind is Kind.NUMBER:
            self._check(value, value.parts[1], c)
            value = Value(Kind.INT, (c.b.fptosi(value.parts[0], I64),), value.there)
        if self.kind is Kind.INT and value.kind is Kind.INT:
            if self.width < 64:
                moved = c.b.add(value.parts[0], ir.Constant(I64, 1 << (self.width - 1)))
                fits = c.b.icmp_unsigned("<", moved, ir.Constant(I64, 1 << self.width))
                self._check(value, fits, c)
            return value
        if self.kind is Kind.FLOAT and value.kind in NUMBERS:
            most = 1 << (53 if self.width == 64 else 24)
            if value.kind is Kind.INT:
                self._check(value, c.is_exact(value.parts[0], most), c)
            elif value.kind is Kind.NUMBER and self.width == 32:
                return None
            return Value(Kind.FLOAT, (as_float(value, c),), value.there)
        return value if self.kind is value.kind else None

    def _check(self, value: Value, holds: Any, c: Code) -> None:
        c.check(holds if value.there is None else c.b.or_(holds, c.b.not_(value.there)))

    def store(self, value: Value, at: Any, places: list[Any], c: Code) -> None:
        """Write a value that fits, or null, into its column."""
        data, lengths, valid = places
        if value.kind is not Kind.NONE:
            part = value.parts[0]
            if self.kind is Kind.INT and self.width < 64:
                part = c.b.trunc(part, ir.IntType(self.width))
            elif self.kind is Kind.FLOAT and self.width == 32:
                part = c.b.fptrunc(part, F32)
            elif self.kind is Kind.BOOL:
                part = c.b.zext(part, I8)
            elif self.kind is Kind.TEXT:
                part = c.b.ptrtoint(part, I64)
                c.b.store(value.parts[1], c.b.gep(self._typed(lengths, I64, c), [at]))
            c.b.store(part, c.b.gep(self._typed(data, part.type, c), [at]))
        if self.nulls:
            there = ir.Constant(I1, 1) if value.there is None else value.there
            c.b.store(c.b.zext(there, I8), c.b.gep(self._typed(valid, I8, c), [at]))

    def _typed(self, address: Any, kind: Any, c: Code) -> Any:
        return c.b.inttoptr(address, kind.as_pointer())

    def check(self) -> None:
        """Refuse a function whose every result the column would refuse."""
        if not self.taken and self.refused is not None:
            name, kind = self.field.name, type_name(self.field.type)
            raise Unfit(f"it gives {self.refused.value} for '{name}', which is {kind}")


class Results:
    """Takes what a function returns apart into columns, as ``pack_rows`` does."""

    def __init__(self, outputs: list[Output], statements: Statements) -> None:
        self.outputs, self.s = outputs, statements
        self.e: Expressions = statements.e

    @property
    def _names(self) -> list[str]:
        return [output.field.name for output in self.outputs]

    def columns(self, node: ast.expr, scope: Scope) -> list[Value] | None:
        """The values of a result, one for each column; None where Python would refuse it."""
        record = self._record(node, scope)
        if record is None:
            record = [self.e.value(node, scope)]
            if len(self.outputs) != 1:
                if record[0].kind is Kind.NONE:
                    return None
                raise Unfit(f"it gives one value for {len(self.outputs)} columns")
        fitted = [o.fit(v, self.e.c) for o, v in zip(self.outputs, record, strict=True)]
        values = [each for each in fitted if each is not None]
        return values if len(values) == len(fitted) else None

    def _record(self, node: ast.expr, scope: Scope) -> list[Value] | None:
        """The fields of a result that is a record; None if it is not one."""
        if isinstance(node, ast.Dict):
            return self._named(self._items(node, scope))
        if isinstance(node, ast.Tuple):
            return self._places(self._elements(node.elts, scope))
        if isinstance(node, ast.Call):
            return self._made(node, scope)
        if isinstance(node, ast.Name) and isinstance(self.e.any(node, scope), Row):
            return self._places(self._row())
        return None

    def _row(self) -> list[Value]:
        return [self.e.records.read(name) for name in self.e.records.names]

    def _elements(self, nodes: list[ast.expr], scope: Scope) -> list[Value]:
        values: list[Value] = []
        for each in nodes:
            if isinstance(each, ast.Starred):
                if not isinstance(self.e.any(each.value, scope), Row):
                    raise Unfit("it has a * before something else than the record")
                values += self._row()
            else:
                values.append(self.e.value(each, scope))
        return values

    def _places(self, values: list[Value]) -> list[Value]:
        if len(values) != len(self.outputs):
            raise Unfit(f"it gives {len(values)} values for {len(self.outputs)} columns")
        return values

    def _items(self, node: ast.Dict, scope: Scope) -> dict[str, Value]:
        items: dict[str, Value] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                if not self._is_row_as_dict(value, scope):
                    raise Unfit("it has ** before something else than row.asdict()")
                items |= dict(zip(self.e.records.names, self._row(), strict=True))
            elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                items[key.value] = self.e.value(value, scope)
            else:
                raise Unfit("it gives a dict whose keys are no constants")
        return items

    def _is_row_as_dict(self, node: ast.expr, scope: Scope) -> bool:
        return (
            isinstance(node, ast.Call)
            and not node.args
            and not node.keywords
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "asdict"
            and isinstance(self.e.any(node.func.value, scope), Row)
        )

    def _named(self, items: dict[str, Value]) -> list[Value]:
        unknown = set(items) - set(self._names)
        if unknown:
            raise Unfit(f"it gives '{sorted(unknown)[0]}', which is not among its columns")
        return [items.get(name, NOTHING) for name in self._names]

    def _made(self, node: ast.Call, scope: Scope) -> list[Value] | None:
        """The fields of a dataclass, a named tuple or a dict that is made where it is returned."""
        if self._is_row_as_dict(node, scope):
            return self._named(dict(zip(self.e.records.names, self._row(), strict=True)))
        if not isinstance(node.func, ast.Name):
            return None
        found = self.e.any(node.func, scope)
        kind = found.object if isinstance(found, Thing) else None
        if not isinstance(kind, type):
            return None
        if any(k.arg is None for k in node.keywords):
            raise Unfit("it has **")
        if kind is dict and not node.args:
            return self._named({str(k.arg): self.e.value(k.value, scope) for k in node.keywords})
        is_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
        if not is_tuple and not dataclasses.is_dataclass(kind):
            return None
        if is_tuple:
            fields = _named_tuple_fields(kind)
        else:
            fields = _dataclass_fields(kind)
        names = list(fields)
        values: dict[str, Any_] = {
            n: self.e.constant(v, n) for n, v in fields.items() if v is not dataclasses.MISSING
        }
        given = self._elements(node.args, scope)
        if len(given) > len(names):
            raise Unfit(f"{kind.__name__} is called with other arguments than it takes")
        values |= dict(zip(names, given, strict=False))
        for k in node.keywords:
            if k.arg not in names or k.arg in names[: len(given)]:
                raise Unfit(f"{kind.__name__} is called with other arguments than it takes")
            values[k.arg] = self.e.value(k.value, scope)
        if set(values) != set(names) or any(not isinstance(v, Value) for v in values.values()):
            raise Unfit(f"{kind.__name__} is called with other arguments than it takes")
        sure = {n: v for n, v in values.items() if isinstance(v, Value)}
        if is_tuple:
            return self._places([sure[n] for n in names])
        if set(self._names) - set(names):
            raise Unfit(f"{kind.__name__} has other fields than the columns of the step")
        return [sure[n] for n in self._names]


def _named_tuple_fields(kind: Any) -> dict[str, Any]:
    """The fields of a named tuple that is made as it always is, with their defaults."""
    new = kind.__new__
    usual = isinstance(new, FunctionType) and new.__code__.co_filename == "<string>"
    if not usual or kind.__init__ is not object.__init__:
        raise Unfit(f"{kind.__name__} is made in a way of its own")
    return {n: kind._field_defaults.get(n, dataclasses.MISSING) for n in kind._fields}


def _dataclass_fields(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass that is made as it always is, with their defaults."""
    made = vars(kind).get("__init__")
    usual = (
        isinstance(made, FunctionType)
        and made.__code__.co_filename == "<string>"
        and vars(kind).get("__dataclass_params__") is not None
        and not hasattr(kind, "__post_init__")
        and kind.__new__ is object.__new__
        and kind.__setattr__ in (object.__setattr__, *_frozen(kind))
        and kind.__getattribute__ is object.__getattribute__
    )
    fields = dataclasses.fields(kind)
    plain = all(
        f.init
        and not f.kw_only
        and f.default_factory is dataclasses.MISSING
        and (f.name not in vars(kind) or not hasattr(vars(kind)[f.name], "__set__"))
        for f in fields
    )
    if not usual or not plain:
        raise Unfit(f"{kind.__name__} is made in a way of its own")
    return {f.name: f.default for f in fields}


def _frozen(kind: Any) -> tuple[Any, ...]:
    return (kind.__setattr__,) if kind.__dataclass_params__.frozen else ()
