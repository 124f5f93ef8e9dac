"""Locks of one word that compiled code takes without the interpreter, and memory by its address.

A thread that finds a lock taken goes on with something else, or lets others run. So threads share
tables in one call, however many tables there are.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_usleep = types.ExternalFunction("usleep", types.intc(types.uintc))
_sched_yield = types.ExternalFunction("sched_yield", types.intc())
_NAP = 50
"""Microseconds: about as long as a table is held."""
_YIELDS, _LOOKS = 8, 1000


def _word(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.PointerType(ir.IntType(64)))


@intrinsic
def pointer(typingctx: Any, address: Any) -> Any:
    """An address as what ``carray`` takes."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.PointerType(ir.IntType(8)))

    return types.voidptr(types.int64), codegen


@intrinsic
def try_lock(typingctx: Any, address: Any) -> Any:
    """Take a lock if it is free; whether it was."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        zero, one = ir.IntType(64)(0), ir.IntType(64)(1)
        swapped = builder.cmpxchg(_word(builder, args[0]), zero, one, "acquire", "monotonic")
        return builder.extract_value(swapped, 1)

    return types.boolean(types.int64), codegen


@intrinsic
def unlock(typingctx: Any, address: Any) -> Any:
    """Give a lock back."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.atomic_rmw("xchg", _word(builder, args[0]), ir.IntType(64)(0), "release")
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@njit(nogil=True, cache=True)
def give_way() -> None:
    """Let another thread have this core now, and not at some moment when a lock is held."""
    _sched_yield()


@njit(nogil=True, cache=True)
def nap() -> None:
    """Let the one who holds a lock run: it may be waiting for this core."""
    _usleep(_NAP)


@njit(nogil=True, cache=True)
def longer_nap(times: int) -> None:
    """Let other threads run for longer, the more often that did not help."""
    _usleep(_NAP << min(times, 5))


@njit(nogil=True, cache=True)
def wait_a_little(times: int, crowded: bool) -> None:
    """What to do when all that is left is locked, for the ``times``-th time on end.

    Tables are held for some tens of microseconds, and to sleep takes longer than that: so look
    again at first, or where threads are ``crowded`` let another one have the core.
    """
    if crowded and times < _YIELDS:
        give_way()
    elif crowded:
        longer_nap(times - _YIELDS)
    elif times >= _LOOKS:
        longer_nap(times - _LOOKS)


@njit(nogil=True, cache=True)
def wait_for(address: int) -> None:
    """Take a lock, however long it takes."""
    while not try_lock(address):
        nap()


@njit(nogil=True, cache=True)
def give_back(address: int) -> None:
    """Give a lock back."""
    unlock(address)
