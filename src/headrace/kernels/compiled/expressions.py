"""Python expressions as code. What is not known to be computed as Python does it is refused."""

from __future__ import annotations

import ast
import datetime
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, Protocol

from llvmlite import ir

from headrace.kernels.compiled import calls, texts, times
from headrace.kernels.compiled.arithmetic import binary, compared, inverted, negative, truth
from headrace.kernels.compiled.code import Code
from headrace.kernels.compiled.names import Names
from headrace.kernels.compiled.values import (
    I1,
    NOTHING,
    NUMBERS,
    PARTS,
    WHOLE,
    Kind,
    Row,
    Thing,
    Unfit,
    Value,
    joined,
    moment,
    number,
)

_MOST = 4000
"""Expressions that one function may have, with those of functions it calls."""
Any_ = Value | Thing | Row
Path = tuple[Any, ...]


class Restart(Exception):
    """A variable turned out to be of a wider kind: begin again with that."""


class Records(Protocol):
    """The columns of the record at hand."""

    names: tuple[str, ...]
    plain: bool
    """Whether the record is the value of its only column."""

    def read(self, name: str) -> Value: ...


@dataclass
class Scope:
    """A function while it is being compiled: its own names, and where a return goes."""

    function: FunctionType
    path: Path
    assigned: set[str]
    bound: dict[str, Any_]
    prologue: Any
    """The block before it, where variables begin without a value."""
    gives: Callable[[ast.expr | None, Scope], None]
    loops: list[tuple[Any, Any]] = field(default_factory=list)
    """Where ``continue`` and ``break`` go."""
    builds: str | None = None
    """The variable that is the list of what a ``flat_map`` gives."""
    inner: dict[str, Any_] = field(default_factory=dict)
    """The variables of a comprehension."""


@dataclass
class _Slot:
    kind: Kind
    parts: list[Any]
    there: Any
    set: Any


class Expressions:
    """Compiles expressions within scopes."""

    def __init__(self, code: Code, names: Names, records: Records, kinds: dict[Path, Kind]) -> None:
        self.c, self.names, self.records, self.kinds = code, names, records, kinds
        self.slots: dict[Path, _Slot] = {}
        self.count = 0
        self.people: Callable[[Thing, ast.Call, Scope], Value] = _no_people
        """Compiles a call of a person's function."""

    # Variables

    def store(self, scope: Scope, name: str, value: Any_) -> None:
        """Give a variable a value."""
        if not isinstance(value, Value):
            raise Unfit(f"it gives '{name}' something that is no value")
        key = (*scope.path, name)
        known = self.kinds.get(key)
        kind = value.kind if known is None else joined(known, value.kind)
        if kind is None:
            assert known is not None
            raise Unfit(f"'{name}' is {known.value} in one place and {value.kind.value} in another")
        if kind is not known:
            self.kinds[key] = kind
            if known is not None:
                raise Restart
        slot = self._slot(scope, key)
        value = self.c.converted(value, kind)
        for place, part in zip(slot.parts, value.parts, strict=True):
            self.c.b.store(part, place)
        yes = ir.Constant(I1, 1)
        self.c.b.store(yes if value.there is None else value.there, slot.there)
        self.c.b.store(yes, slot.set)

    def load(self, scope: Scope, name: str) -> Value:
        """A variable's value."""
        key = (*scope.path, name)
        kind = self.kinds.get(key)
        if kind is None:
            raise Unfit(f"'{name}' is read before it has a value")
        slot = self._slot(scope, key)
        self.c.check(self.c.b.load(slot.set))
        parts = tuple(self.c.b.load(place) for place in slot.parts)
        return Value(kind, parts, self.c.b.load(slot.there))

    def _slot(self, scope: Scope, key: Path) -> _Slot:
        if key not in self.slots:
            kind = self.kinds[key]
            slot = _Slot(
                kind, [self.c.slot(p) for p in PARTS[kind]], self.c.slot(I1), self.c.slot(I1)
            )
            builder = ir.IRBuilder()
            builder.position_before(scope.prologue.terminator)
            builder.store(ir.Constant(I1, 0), slot.set)
            self.slots[key] = slot
        return self.slots[key]

    # Values

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """The value of an expression."""
        found = self.any(node, scope)
        if isinstance(found, Row):
            raise Unfit("it uses the record as a whole")
        if isinstance(found, Thing):
            raise Unfit(f"it uses '{found.name}', {_what(found.object)}")
        return found

    def any(self, node: ast.expr, scope: Scope) -> Any_:
        """What an expression stands for."""
        self.count += 1
        if self.count > _MOST:
            raise Unfit("it is too long")
        build = getattr(self, f"_{type(node).__name__}", None)
        if build is None:
            raise Unfit(f"it has {_named(node)}")
        found: Any_ = build(node, scope)
        return found

    def test(self, node: ast.expr, scope: Scope) -> Any:
        """Whether an expression is true."""
        if isinstance(node, ast.BoolOp):
            result = self.test(node.values[0], scope)
            for each in node.values[1:]:
                more = self._later(each, scope)
                known = ir.Constant(I1, int(isinstance(node.op, ast.Or)))
                ways = (more, lambda k=known: k)
                then, other = ways if isinstance(node.op, ast.And) else ways[::-1]
                result = self.c.flag(result, then, other)
            return result
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.c.b.not_(self.test(node.operand, scope))
        return truth(self.value(node, scope), self.c)

    def _later(self, node: ast.expr, scope: Scope) -> Callable[[], Any]:
        return lambda: self.test(node, scope)

    def constant(self, value: Any, name: str) -> Any_:
        """A Python value that is known already."""
        if value is None:
            return NOTHING
        if type(value) in (bool, int, float):
            return number(value)
        if type(value) is str:
            try:
                return self.c.text(value)
            except UnicodeEncodeError:
                raise Unfit(f"{name} is not text that UTF-8 has") from None
        if type(value) in (datetime.datetime, datetime.timedelta):
            found = moment(value)
            if found is not None:
                return found
        return Thing(value, name)

    def _Constant(self, node: ast.Constant, scope: Scope) -> Any_:
        return self.constant(node.value, repr(node.value))

    def _Name(self, node: ast.Name, scope: Scope) -> Any_:
        name = node.id
        if name in scope.inner:
            return scope.inner[name]
        if name in scope.assigned:
            return self.load(scope, name)
        if name in scope.bound:
            return scope.bound[name]
        return self.constant(self.names.lookup(scope.function, name), name)

    def _Attribute(self, node: ast.Attribute, scope: Scope) -> Any_:
        base = self.any(node.value, scope)
        if isinstance(base, Row):
            usual = node.attr.isidentifier() and not node.attr.startswith("_")
            if node.attr not in self.records.names or not usual or node.attr == "asdict":
                raise Unfit(f"it reads .{node.attr} of the record")
            return self.records.read(node.attr)
        if isinstance(base, Value):
            if base.kind in (Kind.TIME, Kind.NAIVE, Kind.DELTA):
                return times.attribute(base, node.attr, self.c)
            raise Unfit(f"it reads .{node.attr} of {base.kind.value}")
        if isinstance(base.object, ModuleType):
            name = f"{base.name}.{node.attr}"
            return self.constant(self.names.attribute(base.object, node.attr), name)
        raise Unfit(f"it reads .{node.attr} of '{base.name}', {_what(base.object)}")

    def _Subscript(self, node: ast.Subscript, scope: Scope) -> Any_:
        base = self.any(node.value, scope)
        if isinstance(base, Row):
            return self._column(node.slice, scope)
        if isinstance(base, Thing):
            place = self._whole_literal(node.slice, scope)
            if type(base.object) is tuple and place is not None:
                if not -len(base.object) <= place < len(base.object):
                    raise Unfit(f"'{base.name}' has no place {place}")
                return self.constant(base.object[place], base.name)
            raise Unfit(f"it reads a place of '{base.name}', {_what(base.object)}")
        text = self.c.present(base)
        if text.kind is not Kind.TEXT:
            raise Unfit(f"it reads a place of {text.kind.value}")
        if isinstance(node.slice, ast.Slice):
            if node.slice.step is not None:
                raise Unfit("it reads every so many characters of text")
            first, last = (
                None if each is None else self._place(each, scope)
                for each in (node.slice.lower, node.slice.upper)
            )
            return texts.cut(text, first, last, self.c)
        return texts.character(text, self._place(node.slice, scope), self.c)

    def _place(self, node: ast.expr, scope: Scope) -> Any:
        value = self.c.present(self.value(node, scope))
        if value.kind is not Kind.INT:
            raise Unfit(f"a place in text is {value.kind.value}")
        return value.parts[0]

    def _whole_literal(self, node: ast.expr, scope: Scope) -> int | None:
        value = self.any(node, scope)
        if isinstance(value, Value) and value.kind is Kind.INT:
            literal: int | None = value.literal
            return literal
        return None

    def _column(self, node: ast.expr, scope: Scope) -> Value:
        names = self.records.names
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value not in names:
                raise Unfit(f"there is no column '{node.value}'")
            return self.records.read(node.value)
        place = self._whole_literal(node, scope)
        if place is None or not -len(names) <= place < len(names):
            raise Unfit("it reads a column that is not the same for every record")
        return self.records.read(names[place])

    def _BinOp(self, node: ast.BinOp, scope: Scope) -> Value:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        return binary(node.op, left, right, self.c)

    def _UnaryOp(self, node: ast.UnaryOp, scope: Scope) -> Value:
        if isinstance(node.op, ast.Not):
            return Value(Kind.BOOL, (self.test(node, scope),))
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.USub):
            return negative(value, self.c)
        if isinstance(node.op, ast.Invert):
            return inverted(value, self.c)
        value = self.c.present(value)
        if value.kind not in NUMBERS:
            raise Unfit(f"it computes +{value.kind.value}")
        if value.kind in WHOLE:
            return binary(ast.Add(), number(0), value, self.c)
        return value

    def _BoolOp(self, node: ast.BoolOp, scope: Scope) -> Value:
        return self._any_of(node.op, node.values, scope)

    def _any_of(self, op: ast.boolop, nodes: list[ast.expr], scope: Scope) -> Value:
        first = self.value(nodes[0], scope)
        if len(nodes) == 1:
            return first
        ways = (lambda: self._any_of(op, nodes[1:], scope), lambda: first)
        then, other = ways if isinstance(op, ast.And) else ways[::-1]
        return self.c.chosen(truth(first, self.c), then, other)

    def _IfExp(self, node: ast.IfExp, scope: Scope) -> Value:
        condition = self.test(node.test, scope)
        return self.c.chosen(
            condition,
            lambda: self.value(node.body, scope),
            lambda: self.value(node.orelse, scope),
        )

    def _NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> Value:
        if scope.inner:
            raise Unfit("it has := in a comprehension")
        value = self.value(node.value, scope)
        self.store(scope, node.target.id, value)
        return value

    def _Compare(self, node: ast.Compare, scope: Scope) -> Value:
        left = self.any(node.left, scope)
        return Value(Kind.BOOL, (self._chain(left, node.ops, node.comparators, scope),))

    def _chain(self, left: Any_, ops: list[ast.cmpop], others: list[ast.expr], scope: Scope) -> Any:
        """``a < b < c``: each is computed once, and only as far as it is needed."""
        if isinstance(ops[0], (ast.In, ast.NotIn)):
            if len(ops) > 1:
                raise Unfit("it has 'in' in a chain of comparisons")
            within = self._within(self._sure(left), others[0], scope)
            return self.c.b.not_(within) if isinstance(ops[0], ast.NotIn) else within
        right = self.value(others[0], scope)
        result = self._compared(ops[0], self._sure(left), right)
        if len(ops) == 1:
            return result
        return self.c.flag(
            result,
            lambda: self._chain(right, ops[1:], others[1:], scope),
            lambda: ir.Constant(I1, 0),
        )

    def _sure(self, value: Any_) -> Value:
        if not isinstance(value, Value):
            raise Unfit("it compares what is no value")
        return value

    def _compared(self, op: ast.cmpop, left: Value, right: Value) -> Any:
        if not isinstance(op, (ast.Is, ast.IsNot)):
            return compared(op, left, right, self.c)
        if Kind.NONE not in (left.kind, right.kind):
            raise Unfit("it has 'is' with something else than None")
        same = compared(ast.Eq(), left, right, self.c)
        return same if isinstance(op, ast.Is) else self.c.b.not_(same)

    def _within(self, left: Value, node: ast.expr, scope: Scope) -> Any:
        """``left in …``: some constants, or a text."""
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            many: list[Any_] = [self.any(each, scope) for each in node.elts]
        else:
            right = self.any(node, scope)
            if isinstance(right, Value):
                right, left = self.c.present(right), self.c.present(left)
                if right.kind is left.kind is Kind.TEXT:
                    return texts.contains(right, left, self.c)
                raise Unfit(f"it looks for {left.kind.value} in {right.kind.value}")
            if not isinstance(right, Thing) or type(right.object) not in (tuple, frozenset):
                raise Unfit(f"it looks into {_thing(right)}")
            many = [self.constant(each, right.name) for each in right.object]
        result: Any = ir.Constant(I1, 0)
        for each in many:
            value = self._sure(each)
            known = value.kind in (Kind.TEXT, Kind.NONE) or value.literal is not None
            if not known or (value.kind is Kind.FLOAT and math.isnan(value.literal)):
                raise Unfit("it looks for a value among others that are no constants")
            result = self.c.b.or_(result, compared(ast.Eq(), left, value, self.c))
        return result

    def _JoinedStr(self, node: ast.JoinedStr, scope: Scope) -> Value:
        parts = []
        for each in node.values:
            if isinstance(each, ast.FormattedValue):
                if each.format_spec is not None or each.conversion not in (-1, 115):
                    raise Unfit("it formats a value in a way of its own")
                parts.append(texts.as_text(self.value(each.value, scope), self.c))
            else:
                parts.append(self.value(each, scope))
        return texts.added(parts, self.c) if parts else self.c.text("")

    # Calls

    def _Call(self, node: ast.Call, scope: Scope) -> Any_:
        target = node.func
        if isinstance(target, ast.Attribute):
            base = self.any(target.value, scope)
            if isinstance(base, Value):
                if node.keywords:
                    raise Unfit(f"it calls .{target.attr} with a named argument")
                args = [self._method_argument(each, scope) for each in node.args]
                return calls.method(base, target.attr, args, self.c)
        function = self.any(target, scope)
        if not isinstance(function, Thing):
            raise Unfit("it calls what is no function")
        return self.called(function, node, scope)

    def _method_argument(self, node: ast.expr, scope: Scope) -> Any:
        if isinstance(node, ast.Tuple):
            return [self.value(each, scope) for each in node.elts]
        found = self.any(node, scope)
        if isinstance(found, Thing) and type(found.object) is tuple:
            return [self._sure(self.constant(each, found.name)) for each in found.object]
        return self.value(node, scope) if not isinstance(found, Value) else found

    def called(self, function: Thing, node: ast.Call, scope: Scope) -> Any_:
        """A call of a function that is known here, or of a person's."""
        if isinstance(function.object, FunctionType):
            return self.people(function, node, scope)
        try:
            build = calls.FUNCTIONS.get(function.object)
        except TypeError:  # it has no hash
            build = None
        if build is None:
            raise Unfit(f"it calls {function.name}, which is not compiled")
        if node.keywords:
            if function.object is round and [k.arg for k in node.keywords] == ["ndigits"]:
                return build(
                    [self.value(e, scope) for e in (*node.args, node.keywords[0].value)], self.c
                )
            raise Unfit(f"it calls {function.name} with a named argument")
        return build([self.value(each, scope) for each in node.args], self.c)


def _what(thing: Any) -> str:
    """An object in a message."""
    if isinstance(thing, (list, dict, set, bytearray)):
        return f"a {type(thing).__name__}, which may change"
    kind = type(thing).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _thing(found: Any_) -> str:
    return f"'{found.name}', {_what(found.object)}" if isinstance(found, Thing) else "the record"


_NAMES = {
    "Lambda": "a lambda inside it", "ListComp": "a list", "SetComp": "a set", "DictComp": "a dict",
    "GeneratorExp": "a generator", "Await": "await", "Yield": "yield", "YieldFrom": "yield from",
    "Dict": "a dict", "List": "a list", "Set": "a set", "Tuple": "a tuple", "Starred": "a *",
    "Slice": "a slice",
}  # fmt: skip


def _named(node: ast.AST) -> str:
    """Syntax in a message."""
    kind = type(node).__name__
    return _NAMES.get(kind, f"a statement of the kind {kind.lower()}")


def _no_people(function: Thing, node: ast.Call, scope: Scope) -> Value:
    raise Unfit(f"it calls {function.name}")
