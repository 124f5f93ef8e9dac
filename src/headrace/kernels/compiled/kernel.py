"""A person's functions as a native loop over the records of a bundle.

A record that the loop cannot do as Python would is marked, and left to the interpreter.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pyarrow as pa
from llvmlite import ir

from headrace.kernels.compiled import times
from headrace.kernels.compiled.code import Code
from headrace.kernels.compiled.expressions import Expressions, Path, Scope
from headrace.kernels.compiled.names import Names
from headrace.kernels.compiled.outputs import Output, Results
from headrace.kernels.compiled.statements import Definition, Gives, Statements
from headrace.kernels.compiled.values import (
    BYTES,
    F32,
    F64,
    I1,
    I8,
    I32,
    I64,
    TIMES,
    Kind,
    Unfit,
    Value,
    kind_of,
)
from headrace.kernels.rows import VALUE
from headrace.plan.texts import Texts
from headrace.types import type_name

STATUS, MADE, CAPACITY, ORIGIN, ARENA, ROOM, USED, WANTED, FIRST = range(9)
"""The places of a call's parameters: where records are marked, how many were made of how many that
there is room for, what each came from, room for text, and what was wanted when it was too little.
From FIRST on some for each column given, then some for each column read."""
GIVEN, READ = 3, 4
NEEDS_RECORDS = -1
"""What is wanted is room for more records, and not so many bytes of text."""
_MASK = pa.field("mask", pa.bool_())


@dataclass(frozen=True)
class Work:
    """What to compile: functions of a record, and what is done with what they give.

    ``method`` is map, filter, flat_map, or columns: each function then gives a column of its own.
    """

    method: str
    functions: tuple[FunctionType, ...]
    schema: pa.Schema
    gives: pa.Schema
    texts: Texts


class Columns:
    """The columns of the records that come in, read where they lie."""

    def __init__(self, schema: pa.Schema, nullable: frozenset[str], first: int) -> None:
        self.schema, self.nullable, self.first = schema, nullable, first
        self.names = tuple(schema.names)
        self.plain = self.names == (VALUE,)
        self.order: list[str] = []
        self.code: Any = None
        self.parameters: Any = None
        self.row: Any = None
        self.loads: Any = None
        """The block that reads columns, whatever comes of them: LLVM need not branch for it."""
        self._values: dict[str, Value] = {}
        self._known: dict[int, Any] = {}

    def read(self, name: str) -> Value:
        """A column's value of the record at hand."""
        field, c = self.schema.field(name), self.code
        kind = kind_of(field.type)
        if kind is None:
            raise Unfit(f"it reads '{name}', which is {type_name(field.type)}")
        if name not in self._values:
            self.order.append(name)
            with c.b.goto_block(self.loads):
                self._values[name] = self._loaded(name, kind)
        value = self._values[name]
        if kind in TIMES:
            fits = times.in_range(value.parts[0], c)
            c.check(fits if value.there is None else c.b.or_(fits, c.b.not_(value.there)))
        return value

    def _loaded(self, name: str, kind: Kind) -> Value:
        first, b, i = self.first + READ * self.order.index(name), self.code.b, self.row
        there = self._bit(first + 2, first + 3) if name in self.nullable else None
        if kind is Kind.BOOL:
            return Value(kind, (self._bit(first, first + 1),), there)
        if kind is Kind.TEXT:
            offsets = self.pointer(first, I32)
            start = b.sext(b.load(b.gep(offsets, [i])), I64)
            end = b.sext(b.load(b.gep(offsets, [b.add(i, ir.Constant(I64, 1))])), I64)
            data = b.gep(self.pointer(first + 1, I8), [start])
            return Value(kind, (data, b.sub(end, start)), there)
        width = self.schema.field(name).type.bit_width
        if kind is Kind.FLOAT:
            number = b.load(b.gep(self.pointer(first, F64 if width == 64 else F32), [i]))
            return Value(kind, (number if width == 64 else b.fpext(number, F64),), there)
        number = b.load(b.gep(self.pointer(first, ir.IntType(width)), [i]))
        return Value(kind, (number if width == 64 else b.sext(number, I64),), there)

    def parameter(self, place: int) -> Any:
        """One of the call's parameters."""
        if place not in self._known:
            b = ir.IRBuilder()
            b.position_before(self.code.b.function.entry_basic_block.terminator)
            self._known[place] = b.load(b.gep(self.parameters, [ir.Constant(I64, place)]))
        return self._known[place]

    def pointer(self, place: int, kind: Any) -> Any:
        """A parameter that is an address."""
        return self.code.b.inttoptr(self.parameter(place), kind.as_pointer())

    def _bit(self, data: int, offset: int) -> Any:
        b = self.code.b
        place = b.add(self.row, self.parameter(offset))
        byte = b.load(b.gep(self.pointer(data, I8), [b.lshr(place, ir.Constant(I64, 3))]))
        shift = b.trunc(b.and_(place, ir.Constant(I64, 7)), I8)
        return b.trunc(b.lshr(byte, shift), I1)


class Loop:
    """The code of the loop, and what it reads and gives."""

    def __init__(
        self,
        work: Work,
        nullable: frozenset[str],
        kinds: dict[Path, Kind],
        given_null: set[str],
        trees: dict[Any, Definition],
    ) -> None:
        self.names = Names()
        self.module = ir.Module("headrace")
        fields = [_MASK] if work.method == "filter" else list(work.gives)
        self.outputs = [Output(field, given_null) for field in fields]
        self.columns = Columns(work.schema, nullable, FIRST + GIVEN * len(fields))
        self._begin()
        expressions = Expressions(self.c, self.names, self.columns, kinds)
        self.s = Statements(expressions, work.texts, trees)
        self.results = Results(self.outputs, self.s)
        if work.method == "columns":
            for k, function in enumerate(work.functions):
                after = self.c.block("column")
                self.s.enter(function, None, (k,), self._column(self.outputs[k], after))
                self.b.position_at_end(after)
            self.b.branch(self.following)
        else:
            (function,) = work.functions
            many = work.method == "flat_map"
            if many:
                self.s.add, self.s.clear = self._add, self._clear
            gives: Gives = {
                "map": self._one, "flat_map": self._many, "filter": self._mask
            }[work.method]  # fmt: skip
            self.s.enter(function, None, (), gives, many=many)
        for output in self.outputs:
            output.check()
        if any(output.kind is Kind.TEXT for output in self.outputs):
            _gather(self.module)

    def _begin(self) -> None:
        """All of the loop but what is done with a record."""
        kind = ir.FunctionType(I64, [I64.as_pointer(), I64, I64])
        function = ir.Function(self.module, kind, name="run")
        parameters, first, count = function.args
        b = self.b = ir.IRBuilder(function.append_basic_block("entry"))
        head, row, bail, self.grow, self.following, done = (
            function.append_basic_block(n)
            for n in ("head", "row", "bail", "grow", "following", "done")
        )
        c, columns = Code(self.module, b, bail), self.columns
        self.c, columns.code, columns.parameters = c, c, parameters
        place, self.made, self.began, self.used, self.wanted = (b.alloca(I64) for _ in range(5))
        b.store(first, place)
        b.branch(head)
        for slot, parameter in ((self.made, MADE), (self.used, USED)):
            value = columns.parameter(parameter)
            with b.goto_entry_block():
                b.store(value, slot)

        def put(parameter: int, value: Any) -> None:
            b.store(value, b.gep(parameters, [ir.Constant(I64, parameter)]))

        b.position_at_end(head)
        columns.row = b.load(place)
        b.cbranch(b.icmp_signed("<", columns.row, count), row, done)
        b.position_at_end(bail)
        b.store(ir.Constant(I8, 1), b.gep(columns.pointer(STATUS, I8), [columns.row]))
        b.store(b.load(self.began), self.made)
        b.branch(self.following)
        b.position_at_end(self.following)
        b.store(b.add(columns.row, ir.Constant(I64, 1)), place)
        b.branch(head)
        b.position_at_end(self.grow)
        put(WANTED, b.load(self.wanted))
        put(MADE, b.load(self.began))
        b.ret(columns.row)
        b.position_at_end(done)
        put(MADE, b.load(self.made))
        b.ret(count)
        b.position_at_end(row)
        columns.loads = row
        b.store(b.load(self.made), self.began)
        if all(output.kind is not Kind.TEXT for output in self.outputs):
            b.store(ir.Constant(I64, 0), self.used)  # text is of this record only
        c.take = self._take
        body = c.block("record")
        b.branch(body)
        b.position_at_end(body)

    def _room(self, enough: Any, wanted: Any) -> None:
        """Go on if there is room; if not, leave the loop, to come back with more."""
        on, short = self.c.block("enough"), self.c.block("short")
        self.b.cbranch(enough, on, short)
        self.b.position_at_end(short)
        self.b.store(wanted, self.wanted)
        self.b.branch(self.grow)
        self.b.position_at_end(on)

    def _take(self, size: Any) -> Any:
        start = self.b.load(self.used)
        end = self.b.add(start, size)
        self._room(self.b.icmp_signed("<=", end, self.columns.parameter(ROOM)), size)
        self.b.store(end, self.used)
        return self.b.gep(self.columns.pointer(ARENA, I8), [start])

    # What is done with a result

    def _store(self, output: Output, value: Value, at: Any) -> None:
        first = FIRST + GIVEN * self.outputs.index(output)
        places = [self.columns.parameter(first + i) for i in range(GIVEN)]
        output.store(value, at, places, self.c)

    def _branches(self, node: ast.expr, scope: Scope, gives: Gives, *, many: bool = False) -> bool:
        """Go on in a choice or in another function that a result is left to."""
        if isinstance(node, ast.IfExp):
            self.s.branch(
                self.s.e.test(node.test, scope),
                lambda: gives(node.body, scope),
                lambda: gives(node.orelse, scope),
            )
            return True
        return self.s.tail(node, scope, gives, many=many)

    def _one(self, node: ast.expr | None, scope: Scope) -> None:
        """The result of ``map``."""
        node = ast.Constant(None) if node is None else node
        if self._branches(node, scope, self._one):
            return
        values = self.results.columns(node, scope)
        for output, value in zip(self.outputs, values or (), strict=values is not None):
            self._store(output, value, self.columns.row)
        self.b.branch(self.c.bail if values is None else self.following)

    def _column(self, output: Output, after: Any) -> Gives:
        """How a function of one column gives it, and then goes on."""

        def gives(node: ast.expr | None, scope: Scope) -> None:
            node = ast.Constant(None) if node is None else node
            if self._branches(node, scope, gives):
                return
            value = output.fit(self.s.e.value(node, scope), self.c)
            if value is not None:
                self._store(output, value, self.columns.row)
            self.b.branch(self.c.bail if value is None else after)

        return gives

    def _mask(self, node: ast.expr | None, scope: Scope) -> None:
        """The result of ``filter``."""
        node = ast.Constant(None) if node is None else node
        if self._branches(node, scope, self._mask):
            return
        value = Value(Kind.BOOL, (self.s.e.test(node, scope),))
        self._store(self.outputs[0], value, self.columns.row)
        self.b.branch(self.following)

    def _many(self, node: ast.expr | None, scope: Scope) -> None:
        """The result of ``flat_map``."""
        if isinstance(node, ast.Name) and node.id == scope.builds:
            self.b.branch(self.following)
            return
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            self.b.branch(self.c.bail)  # None has no items
            return
        if scope.builds is not None:
            self._clear()
        if self._branches(node, scope, self._many, many=True):
            return
        self.s.loops.each(node, scope, lambda item: self.s.add_value(item, scope))
        self.b.branch(self.following)

    def _add(self, node: ast.expr, scope: Scope) -> None:
        """One more record of a ``flat_map``."""
        values = self.results.columns(node, scope)
        if values is None:
            self.c.give_up()
            return
        b, columns = self.b, self.columns
        at = b.load(self.made)
        more = b.icmp_signed("<", at, columns.parameter(CAPACITY))
        self._room(more, ir.Constant(I64, NEEDS_RECORDS))
        for output, value in zip(self.outputs, values, strict=True):
            self._store(output, value, at)
        b.store(columns.row, b.gep(columns.pointer(ORIGIN, I64), [at]))
        b.store(b.add(at, ir.Constant(I64, 1)), self.made)

    def _clear(self) -> None:
        self.b.store(self.b.load(self.began), self.made)


def _gather(module: Any) -> None:
    """A loop that puts texts that lie anywhere one after the other."""
    kind = ir.FunctionType(I64, [I64.as_pointer(), I64, I64])
    function = ir.Function(module, kind, name="gather")
    parameters, first, count = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    c = Code(module, b, None)
    texts, lengths, offsets, data = (
        b.inttoptr(b.load(b.gep(parameters, [ir.Constant(I64, i)])), each.as_pointer())
        for i, each in enumerate((I64, I64, I32, I8))
    )
    start = function.append_basic_block("start")
    b.branch(start)
    b.position_at_end(start)
    with c.counting(first, count) as (i, _):
        place = b.gep(data, [b.sext(b.load(b.gep(offsets, [i])), I64)])
        text = b.inttoptr(b.load(b.gep(texts, [i])), BYTES)
        c.external("memcpy", BYTES, place, text, b.load(b.gep(lengths, [i])))
    b.ret(count)
