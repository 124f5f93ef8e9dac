"""Steps with a person's function of a record: as native code where that can be, else as Python.

A function is run by the interpreter first, and compiled once it has had so many records that
compiling it pays. What it gives does not depend on which of the two runs it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from contextvars import ContextVar
from types import FunctionType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.kernels.compiled.bundles import Compiled, Ran, TooMuchText
from headrace.kernels.compiled.kernel import Work
from headrace.kernels.compiled.values import Unfit
from headrace.kernels.rows import Interpreter, Keeping, WithValues
from headrace.plan.explain import LOCK
from headrace.plan.rows import MapRows

NATIVE = "native code"
ROW_METHODS = ("map", "flat_map", "filter")
"""Those whose function gives something; the others are called for their effect."""
COMPILED_AFTER = 10_000
"""Records after which a function is compiled: by then the interpreter took as long as that does."""
_TRIED = 50_000
"""Records after which native code is given up if it leaves most of them to the interpreter."""
_MOST_VARIANTS = 8
"""How often a function is compiled anew because a global that it reads has changed."""


class Elsewhere(Protocol):
    """Processes to run functions in that cannot be compiled."""

    at_once: bool
    """Whether to run them there from the first record on."""

    def run(self, step: RowStep, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """What comes of a bundle; None if it is to be run here."""


ELSEWHERE: ContextVar[Elsewhere | None] = ContextVar("ELSEWHERE", default=None)
"""What steps are compiled for at the moment: an engine says so while it compiles a pipeline."""
_Key = tuple[Any, ...]
_COMPILED: OrderedDict[_Key, Compiled] = OrderedDict()
_MOST_COMPILED = 256
_CACHE = threading.Lock()


def work_of(step: MapRows, schema: pa.Schema) -> Work:
    """A step as work for the compiler."""
    function, method, gives = step.function, step.method, step.schema
    functions: tuple[Any, ...] = (function,)
    if method not in ROW_METHODS:
        raise Unfit("it is called for its effect")
    if isinstance(function, WithValues):
        functions, method = function.row_functions, "columns"
        gives = pa.schema([gives.field(i) for i in range(len(schema), len(gives))])
    elif isinstance(function, Keeping):
        functions = function.row_functions
        gives = pa.schema([gives.field(i) for i in range(len(function.kept), len(gives))])
    for each in functions:
        if not isinstance(each, FunctionType):
            raise Unfit("it is not a plain function")
    return Work(method, functions, schema, gives, step.texts)


def why_not_native(step: MapRows, schema: pa.Schema) -> str | None:
    """Why a step's function cannot be compiled, in a few words; None if it can."""
    try:
        _compiled(step, schema, nulls=False)
    except Unfit as unfit:
        return str(unfit)
    return None


def row_place(step: MapRows) -> str:
    """How a step's function runs: as native code, or as Python and why."""
    if step.method not in ROW_METHODS:
        return LOCK
    why = why_not_native(step, step.input.schema)
    return NATIVE if why is None else f"{LOCK}: {why}"


def _compiled(step: MapRows, schema: pa.Schema, *, nulls: bool) -> Compiled:
    """A step's function compiled, once for all that run it while its globals stay the same."""
    work = work_of(step, schema)
    columns = tuple((f.name, f.type) for s in (schema, step.schema) for f in s)
    key = (step.function, step.method, len(schema), columns, nulls)
    with _CACHE:
        found = _COMPILED.get(key)
    if found is None or not found.current:
        try:
            found = Compiled(work, frozenset(schema.names) if nulls else frozenset()).compile()
        except RecursionError:
            raise Unfit("it is nested too deeply") from None
        except RuntimeError as error:
            raise Unfit(f"LLVM cannot compile it: {str(error).splitlines()[0]}") from error
        with _CACHE:
            _COMPILED[key] = found
            if len(_COMPILED) > _MOST_COMPILED:
                _COMPILED.popitem(last=False)
    return found


class RowStep:
    """A step with a function of a record, over bundles."""

    def __init__(self, step: MapRows, schema: pa.Schema) -> None:
        self.step, self.schema = step, schema
        label = f"{step.label} ({step.detail})"
        self.interpreter = Interpreter(step.function, step.method, step.schema, label)
        self.seconds = 0.0
        """What the interpreter has taken so far."""
        self.unfit = False
        """Whether it cannot be compiled, or does not pay to be."""
        self._ran = self._left = 0
        self._elsewhere = ELSEWHERE.get()
        at_once = step.native or (self._elsewhere is not None and self._elsewhere.at_once)
        self._seen, self._enough = 0, 0 if at_once else COMPILED_AFTER
        self._variants = 0
        self._compiling = threading.Lock()
        self._with_nulls: dict[bool, Compiled] = {}

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What comes of a bundle."""
        native = self._native(batch)
        if native is not None:
            try:
                ran = native.run(batch)
            except TooMuchText:
                pass
            else:
                self._ran, self._left = self._ran + batch.num_rows, self._left + ran.left.size
                self.unfit = self._ran > _TRIED and 2 * self._left > self._ran
                return self._joined(batch, ran)
        if self.unfit and self._elsewhere is not None:
            result = self._elsewhere.run(self, batch)
            if result is not None:
                return result
        start = time.thread_time()
        result = self.interpreter(batch)
        self.seconds += time.thread_time() - start
        return result

    # Native code

    def _native(self, batch: pa.RecordBatch) -> Compiled | None:
        """The compiled function, if there is one for such a bundle by now."""
        if self.unfit:
            return None
        if self._seen < self._enough:
            self._seen += batch.num_rows
            if self._seen < self._enough:
                return None
        plain = self._with_nulls.get(False)
        nulls = plain is not None and any(batch.column(n).null_count for n in plain.columns)
        found = self._with_nulls.get(nulls)
        if found is not None and found.current:
            return found
        return self._compile(batch)

    def _compile(self, batch: pa.RecordBatch) -> Compiled | None:
        if not self._compiling.acquire(blocking=self._enough == 0):
            return None  # another thread is at it
        try:
            if self.unfit:
                return None
            self._variants += 1
            if self._variants > 2 * _MOST_VARIANTS:
                self.unfit = True
                return None
            found = self._with_nulls[False] = _compiled(self.step, self.schema, nulls=False)
            if any(batch.column(n).null_count for n in found.columns):
                found = self._with_nulls[True] = _compiled(self.step, self.schema, nulls=True)
            return found
        except Unfit:
            self.unfit = True
            return None
        finally:
            self._compiling.release()

    def _joined(self, batch: pa.RecordBatch, ran: Ran) -> pa.RecordBatch:
        """What native code gave, with what the interpreter gives for the records it left."""
        if self.interpreter.method == "filter":
            return self._filtered(batch, ran)
        result = self._assembled(batch, ran)
        if not ran.left.size:
            return result
        rest = batch.take(pa.array(ran.left))
        if self.interpreter.method == "map":
            more = self.interpreter.mapped(rest)
            order = np.arange(batch.num_rows)
            order[ran.left] = batch.num_rows + np.arange(ran.left.size)
        else:
            more, counts = self.interpreter.flat_mapped(rest)
            origin = np.concatenate([ran.origin, np.repeat(ran.left, counts)])
            order = np.argsort(origin, kind="stable")
        return pa.concat_batches([result, more]).take(pa.array(order))

    def _filtered(self, batch: pa.RecordBatch, ran: Ran) -> pa.RecordBatch:
        (mask,) = ran.columns
        if ran.left.size:
            rest = batch.take(pa.array(ran.left))
            kept = np.array(mask.to_numpy(zero_copy_only=False))
            more = self.interpreter.mask(rest)
            kept[ran.left] = more.to_numpy(zero_copy_only=False)
            mask = pa.array(kept)
        count = mask.true_count
        if count == len(mask):
            return batch
        return batch.filter(mask) if count else batch.slice(0, 0)

    def _assembled(self, batch: pa.RecordBatch, ran: Ran) -> pa.RecordBatch:
        columns, function = ran.columns, self.interpreter.function
        if isinstance(function, WithValues):
            columns = [*batch.columns, *columns]
        elif isinstance(function, Keeping):
            origin = pa.array(ran.origin)
            columns = [*(batch.column(n).take(origin) for n in function.kept), *columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.interpreter.schema)
