"""LLVM code of one record: straight on, or out to the interpreter where Python would differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from headrace.kernels.compiled.values import (
    F64,
    I1,
    I8,
    I64,
    NOTHING,
    PARTS,
    Kind,
    Unfit,
    Value,
    joined,
)

EXACT = 2**53
"""Up to here every integer is a float as well."""


class Code:
    """A builder of instructions, and where to go with a record that only the interpreter can do."""

    def __init__(self, module: Any, builder: Any, bail: Any) -> None:
        self.module, self.b, self.bail = module, builder, bail
        self.texts: dict[bytes, Any] = {}
        self.grow: Any = None
        """Where to go when there is no more room for text or for records."""
        self.take: Callable[[Any], Any] = _no_room
        """Gives room for so many bytes of text."""

    def block(self, name: str) -> Any:
        return self.b.append_basic_block(name)

    def go(self, block: Any) -> None:
        """Go on at a block, from here unless this has ended."""
        if not self.b.block.is_terminated:
            self.b.branch(block)
        self.b.position_at_end(block)

    def check(self, holds: Any) -> None:
        """Leave the record to the interpreter unless something holds."""
        after = self.block("checked")
        self.b.cbranch(holds, after, self.bail).set_weights([1 << 20, 1])
        self.b.position_at_end(after)

    def give_up(self) -> None:
        """Leave the record to the interpreter. What follows is never reached."""
        self.b.branch(self.bail)
        self.b.position_at_end(self.block("unreached"))

    def slot(self, kind: Any) -> Any:
        """Memory for a variable."""
        with self.b.goto_entry_block():
            return self.b.alloca(kind)

    def intrinsic(self, name: str, *args: Any) -> Any:
        """One of LLVM's own functions of floats."""
        kind = ir.FunctionType(F64, [F64] * len(args))
        declared = self.module.declare_intrinsic(f"llvm.{name}", [F64], kind)
        return self.b.call(declared, args)

    def external(self, name: str, returns: Any, *args: Any) -> Any:
        """A function of the C library."""
        known = self.module.globals.get(name)
        if known is None:
            known = ir.Function(
                self.module, ir.FunctionType(returns, [a.type for a in args]), name=name
            )
        return self.b.call(known, args)

    def present(self, value: Value) -> Value:
        """The value itself; what is done with None only the interpreter knows."""
        if value.kind is Kind.NONE:
            raise Unfit("it computes with None")
        if value.there is not None:
            self.check(value.there)
        return value.sure()

    def text(self, text: str) -> Value:
        """A text that is known already."""
        data = text.encode()
        known = self.texts.get(data)
        if known is None:
            kind = ir.ArrayType(I8, max(1, len(data)))
            known = ir.GlobalVariable(self.module, kind, name=f"text{len(self.texts)}")
            known.global_constant, known.linkage = True, "internal"
            known.initializer = ir.Constant(kind, bytearray(data or b"\0"))
            self.texts[data] = known
        start = self.b.bitcast(known, I8.as_pointer())
        return Value(Kind.TEXT, (start, ir.Constant(I64, len(data))))

    def converted(self, value: Value, kind: Kind) -> Value:
        """A value as one of a kind that it joins."""
        if value.kind is kind:
            return value
        if value.kind is Kind.NONE:
            zeros = tuple(ir.Constant(part, None) for part in PARTS[kind])
            return Value(kind, zeros, NOTHING.there)
        assert kind is Kind.NUMBER
        if value.kind is Kind.FLOAT:
            return Value(kind, (value.parts[0], ir.Constant(I1, 0)), value.there)
        whole = value.parts[0]
        fits = self.is_exact(whole)
        if value.there is not None:
            fits = self.b.or_(fits, self.b.not_(value.there))
        self.check(fits)
        return Value(kind, (self.b.sitofp(whole, F64), ir.Constant(I1, 1)), value.there)

    def is_exact(self, whole: Any, most: int = EXACT) -> Any:
        """Whether an integer is a float as well, without a loss."""
        if isinstance(whole, ir.Constant):
            return ir.Constant(I1, int(abs(whole.constant) <= most))
        moved = self.b.add(whole, ir.Constant(I64, most))
        return self.b.icmp_unsigned("<=", moved, ir.Constant(I64, 2 * most))

    def chosen(
        self, condition: Any, then: Callable[[], Value], other: Callable[[], Value]
    ) -> Value:
        """One value or the other, of which only that one is computed."""
        ways = [self.block("then"), self.block("else")]
        after = self.block("chosen")
        self.b.cbranch(condition, *ways)
        ended = []
        for way, compute in zip(ways, (then, other), strict=True):
            self.b.position_at_end(way)
            value = compute()
            ended.append((self.b.block, value))
        kind = joined(ended[0][1].kind, ended[1][1].kind)
        if kind is None:
            one, two = (value.kind.value for _, value in ended)
            raise Unfit(f"it has {one} in one case and {two} in another")
        incoming = []
        for block, value in ended:
            self.b.position_at_end(block)
            value = self.converted(value, kind)
            incoming.append((self.b.block, value))
            self.b.branch(after)
        self.b.position_at_end(after)
        return self.merged(kind, incoming)

    def merged(self, kind: Kind, incoming: Sequence[tuple[Any, Value]]) -> Value:
        """What comes from either of several blocks, all values of one kind."""
        parts = []
        for i, part in enumerate(PARTS[kind]):
            phi = self.b.phi(part)
            for block, value in incoming:
                phi.add_incoming(value.parts[i], block)
            parts.append(phi)
        there = None
        if any(value.there is not None for _, value in incoming):
            there = self.b.phi(I1)
            for block, value in incoming:
                there.add_incoming(
                    ir.Constant(I1, 1) if value.there is None else value.there, block
                )
        return Value(kind, tuple(parts), there)

    def flag(self, condition: Any, then: Callable[[], Any], other: Callable[[], Any]) -> Any:
        """Like ``chosen``, of plain conditions."""
        value = self.chosen(
            condition,
            lambda: Value(Kind.BOOL, (then(),)),
            lambda: Value(Kind.BOOL, (other(),)),
        )
        return value.parts[0]

    @contextmanager
    def counting(self, first: Any, end: Any) -> Iterator[tuple[Any, Any]]:
        """A loop from one integer to before another: the integer, and where the loop ends."""
        head, body, after = self.block("head"), self.block("body"), self.block("after")
        place = self.slot(I64)
        self.b.store(first, place)
        self.go(head)
        i = self.b.load(place)
        self.b.cbranch(self.b.icmp_signed("<", i, end), body, after)
        self.b.position_at_end(body)
        yield i, after
        if not self.b.block.is_terminated:
            self.b.store(self.b.add(i, ir.Constant(I64, 1)), place)
            self.b.branch(head)
        self.b.position_at_end(after)


def _no_room(size: Any) -> Any:
    raise Unfit("it makes text")
