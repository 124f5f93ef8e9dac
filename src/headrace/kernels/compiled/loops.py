"""Loops over ranges, lists, comprehensions and the parts of a text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from headrace.kernels.compiled import texts
from headrace.kernels.compiled.expressions import Any_, Expressions, Scope
from headrace.kernels.compiled.integers import checked
from headrace.kernels.compiled.values import I1, I64, Kind, Thing, Unfit, Value

_ZERO = ir.Constant(I64, 0)


def variable(node: ast.expr) -> str:
    """The name of a variable that is given a value."""
    if not isinstance(node, ast.Name):
        raise Unfit("it gives a value to something else than a variable")
    return node.id


class Loops:
    """Compiles what is done with each item of something."""

    def __init__(self, expressions: Expressions) -> None:
        self.e, self.c = expressions, expressions.c

    def each(self, node: ast.expr, scope: Scope, body: Callable[[Any_ | ast.expr], None]) -> None:
        """Do something with every item of a range, a list, a comprehension or a split text."""
        if isinstance(node, (ast.Tuple, ast.List)):
            self._unrolled(list(node.elts), scope, body)
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            self._comprehended(node, node.generators, scope, body)
        elif isinstance(node, ast.Call):
            self._each_called(node, scope, body)
        else:
            found = self.e.any(node, scope)
            if not isinstance(found, Thing) or type(found.object) is not tuple:
                raise Unfit("it goes through something else than a range, a list or split text")
            self._unrolled([self.e.constant(i, found.name) for i in found.object], scope, body)

    def _unrolled(
        self, items: Sequence[Any_ | ast.expr], scope: Scope, body: Callable[..., None]
    ) -> None:
        if any(isinstance(item, ast.Starred) for item in items):
            raise Unfit("it has a * in a list")
        after = self.c.block("listed")
        for item in items:
            following = self.c.block("next")
            scope.loops.append((following, after))
            body(item)
            scope.loops.pop()
            self.c.go(following)
        self.c.go(after)

    def _comprehended(
        self,
        node: ast.ListComp | ast.GeneratorExp,
        generators: list[ast.comprehension],
        scope: Scope,
        body: Callable[[Any_ | ast.expr], None],
    ) -> None:
        if not generators:
            body(node.elt)
            return
        first, *rest = generators
        name = variable(first.target)
        if first.is_async:
            raise Unfit("it is asynchronous")

        def inner(item: Any_ | ast.expr) -> None:
            value = self.e.value(item, scope) if isinstance(item, ast.expr) else item
            before = dict(scope.inner)
            scope.inner[name] = value
            after = scope.loops[-1][0]
            for condition in first.ifs:
                more = self.c.block("if")
                self.c.b.cbranch(self.e.test(condition, scope), more, after)
                self.c.b.position_at_end(more)
            self._comprehended(node, rest, scope, body)
            scope.inner = before

        self.each(first.iter, scope, inner)

    def _each_called(
        self, node: ast.Call, scope: Scope, body: Callable[[Any_ | ast.expr], None]
    ) -> None:
        target = node.func
        if isinstance(target, ast.Attribute) and target.attr == "split" and not node.keywords:
            text = self.c.present(self.e.value(target.value, scope))
            if text.kind is not Kind.TEXT:
                raise Unfit(f"it splits {text.kind.value}")
            separator = [self.e.value(each, scope) for each in node.args]
            self._split(text, separator, scope, body)
            return
        found = self.e.any(target, scope)
        made = found.object if isinstance(found, Thing) else None
        if made in (list, tuple, iter) and len(node.args) == 1 and not node.keywords:
            self.each(node.args[0], scope, body)
            return
        if made is not range or node.keywords or not 1 <= len(node.args) <= 3:
            raise Unfit("it goes through something else than a range, a list or split text")
        values = [self.c.present(self.e.value(each, scope)) for each in node.args]
        if any(value.kind is not Kind.INT for value in values):
            raise Unfit("it has a range of what are no ints")
        parts = [value.parts[0] for value in values]
        first, last = (_ZERO, parts[0]) if len(parts) == 1 else parts[:2]
        step = parts[2] if len(parts) == 3 else ir.Constant(I64, 1)
        if not isinstance(step, ir.Constant) or step.constant == 0:
            raise Unfit("it has a range whose step is not a constant")
        self._ranged(first, last, step, scope, body)

    def _ranged(
        self, first: Any, last: Any, step: Any, scope: Scope, body: Callable[[Any_], None]
    ) -> None:
        head, inside, following, after = (
            self.c.block(n) for n in ("range", "in", "next", "ranged")
        )
        place = self.c.slot(I64)
        self.c.b.store(first, place)
        self.c.go(head)
        i = self.c.b.load(place)
        sign = "<" if step.constant > 0 else ">"
        self.c.b.cbranch(self.c.b.icmp_signed(sign, i, last), inside, after)
        self.c.b.position_at_end(inside)
        scope.loops.append((following, after))
        body(Value(Kind.INT, (i,)))
        scope.loops.pop()
        self.c.go(following)
        self.c.b.store(checked("+", i, step, self.c), place)
        self.c.b.branch(head)
        self.c.b.position_at_end(after)

    def _split(
        self, text: Value, separator: list[Value], scope: Scope, body: Callable[[Any_], None]
    ) -> None:
        """The words of a text, or its parts between a character."""
        c, b = self.c, self.c.b
        if len(separator) > 1:
            raise Unfit("it splits text a number of times")
        words = not separator or separator[0].kind is Kind.NONE
        if not words:
            by = c.present(separator[0])
            if by.kind is not Kind.TEXT:
                raise Unfit(f"it splits text by {by.kind.value}")
            c.check(b.icmp_signed("==", by.parts[1], ir.Constant(I64, 1)))
            mark = b.load(by.parts[0])
        start, end, size = c.slot(I64), c.slot(I64), text.parts[1]
        head, scan, look, found, following, after = (
            c.block(n) for n in ("word", "scan", "look", "found", "next", "split")
        )
        one = ir.Constant(I64, 1)
        b.store(_ZERO, end)
        c.go(head)
        b.store(b.load(end), start)
        c.go(scan)
        at = b.load(end)
        b.cbranch(b.icmp_signed("<", at, size), look, found)
        b.position_at_end(look)
        byte = b.load(b.gep(text.parts[0], [at]))
        if words:
            c.check(b.icmp_signed(">=", byte, ir.Constant(byte.type, 0)))
        stops = texts.is_space(byte, c) if words else b.icmp_signed("==", byte, mark)
        on = c.block("on")
        b.cbranch(stops, found, on)
        b.position_at_end(on)
        b.store(b.add(at, one), end)
        b.branch(scan)
        b.position_at_end(found)
        first, last = b.load(start), b.load(end)
        part = b.sub(last, first)
        some = b.icmp_signed(">", part, _ZERO) if words else ir.Constant(I1, 1)
        give = c.block("give")
        b.cbranch(some, give, following)
        b.position_at_end(give)
        scope.loops.append((following, after))
        body(Value(Kind.TEXT, (b.gep(text.parts[0], [first]), part)))
        scope.loops.pop()
        c.go(following)
        ended = b.load(end)
        b.store(b.add(ended, one), end)
        b.cbranch(b.icmp_signed("<", ended, size), head, after)
        b.position_at_end(after)
