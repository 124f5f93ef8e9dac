"""Python statements as code, and the functions they are in, one inside the other."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

from headrace.kernels.compiled.arithmetic import binary
from headrace.kernels.compiled.expressions import Any_, Expressions, Path, Scope
from headrace.kernels.compiled.loops import Loops, variable
from headrace.kernels.compiled.values import Row, Thing, Unfit, Value
from headrace.plan.texts import Texts, key_of, text_of

Definition = ast.FunctionDef | ast.Lambda
Gives = Callable[[ast.expr | None, Scope], None]


class Statements:
    """Compiles the bodies of functions."""

    def __init__(self, expressions: Expressions, sources: Texts, trees: dict[Any, Definition]):
        self.e, self.c = expressions, expressions.c
        self.loops = Loops(expressions)
        self.sources, self.trees = sources, trees
        self.running: list[CodeType] = []
        self.times: Counter[Path] = Counter()
        self.add: Callable[[ast.expr, Scope], None] | None = None
        """Adds a record to what a ``flat_map`` gives, and ``clear`` forgets those of this one."""
        self.clear: Callable[[], None] = lambda: None
        expressions.people = self.inline

    # Functions

    def enter(
        self,
        function: FunctionType,
        bound: dict[str, Any_] | None,
        path: Path,
        gives: Gives,
        *,
        many: bool = False,
    ) -> None:
        """A function's body from here on; ``bound`` are its arguments, or else it gets a record.

        ``many`` if what it gives are the records of a ``flat_map``.
        """
        if function.__code__ in self.running:
            raise Unfit(f"{function.__name__} calls itself")
        definition = self._tree(function)
        if bound is None:
            bound = self._arguments(function, definition, [Row()], {})
        generates = bool(function.__code__.co_flags & inspect.CO_GENERATOR)
        if function.__code__.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise Unfit("it is asynchronous")
        if generates and not many:
            raise Unfit("it yields")
        body: list[ast.stmt] = (
            [ast.Return(definition.body)] if isinstance(definition, ast.Lambda) else definition.body
        )
        if generates:
            gives = _ending(gives)
        prologue = self.c.block("prologue")
        self.c.go(prologue)
        start = self.c.block("start")
        self.c.b.branch(start)
        self.c.b.position_at_end(start)
        assigned = set(_assigned(body))
        scope = Scope(function, path, assigned, bound, prologue, gives)
        scope.builds = _built(body) if many and not generates else None
        for name in assigned & set(bound):
            self.e.store(scope, name, bound[name])
        self.running.append(function.__code__)
        try:
            self.run(body, scope)
            if not self.c.b.block.is_terminated:
                gives(None, scope)
        finally:
            self.running.pop()

    def inline(self, function: Thing, node: ast.Call, scope: Scope) -> Value:
        """The value of a call of a person's function."""
        try:
            return self._inlined(function.object, node, scope)
        except Unfit as unfit:
            raise Unfit(f"it calls {function.name}: {unfit}") from None

    def _inlined(self, function: FunctionType, node: ast.Call, scope: Scope) -> Value:
        bound = self._called_with(function, node, scope)
        path = self._below(scope, node)
        after = self.c.block("returned")

        def gives(result: ast.expr | None, inner: Scope) -> None:
            value = self.e.value(ast.Constant(None) if result is None else result, inner)
            self.e.store(inner, "return", value)
            self.c.b.branch(after)

        self.enter(function, bound, path, gives)
        self.c.b.position_at_end(after)
        result = Scope(function, path, set(), {}, after, gives)
        return self.e.load(result, "return")

    def tail(self, node: ast.expr, scope: Scope, gives: Gives, *, many: bool = False) -> bool:
        """A call of a person's function whose result is ours: go on in it. False if it is none."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
            return False
        if isinstance(node.func, ast.Attribute):
            base = node.func.value
            if not isinstance(base, ast.Name) or not isinstance(self.e.any(base, scope), Thing):
                return False
        found = self.e.any(node.func, scope)
        if not isinstance(found, Thing) or not isinstance(found.object, FunctionType):
            return False
        try:
            bound = self._called_with(found.object, node, scope)
            self.enter(found.object, bound, self._below(scope, node), gives, many=many)
        except Unfit as unfit:
            raise Unfit(f"it calls {found.name}: {unfit}") from None
        return True

    def _below(self, scope: Scope, node: ast.Call) -> Path:
        """What tells a function's variables here from those of its other calls."""
        path = (*scope.path, id(node))
        self.times[path] += 1
        return (*path, self.times[path])

    def _called_with(self, function: FunctionType, node: ast.Call, scope: Scope) -> dict[str, Any_]:
        args = [self.e.any(each, scope) for each in node.args]
        named = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise Unfit("it calls a function with **")
            named[keyword.arg] = self.e.any(keyword.value, scope)
        return self._arguments(function, self._tree(function), args, named)

    def _arguments(
        self,
        function: FunctionType,
        definition: Definition,
        args: Sequence[Any_],
        named: dict[str, Any_],
    ) -> dict[str, Any_]:
        """A function's parameters with what they are called with."""
        name, how = function.__name__, definition.args
        if how.vararg is not None or how.kwarg is not None:
            raise Unfit(f"{name} takes any number of arguments")
        self.e.names.watch(function)
        places = [a.arg for a in (*how.posonlyargs, *how.args)]
        defaults = function.__defaults__ or ()
        bound: dict[str, Any_] = {
            place: self.e.constant(value, place)
            for place, value in zip(places[len(places) - len(defaults) :], defaults, strict=True)
        }
        for place, value in (function.__kwdefaults__ or {}).items():
            bound[place] = self.e.constant(value, place)
        known = {*places, *(a.arg for a in how.kwonlyargs)}
        given = dict(zip(places, args, strict=False))
        if len(args) > len(places) or set(named) - known or set(named) & set(given):
            raise Unfit(f"{name} is called with other arguments than it takes")
        bound |= given | named
        if known - set(bound):
            raise Unfit(f"{name} is called with other arguments than it takes")
        if self.e.records.plain:  # the record is the value
            value = self.e.records.names[0]
            bound = {n: self.e.records.read(value) if isinstance(v, Row) else v
                     for n, v in bound.items()}  # fmt: skip
        return bound

    def _tree(self, function: FunctionType) -> Definition:
        code = function.__code__
        if code not in self.trees:
            text = self.sources.get(key_of(code)) or text_of(function)
            if text is None:
                whose = "its source" if not self.running else f"the source of {function.__name__}"
                raise Unfit(f"{whose} cannot be read")
            statement = ast.parse(text).body[0]
            found = statement.value if isinstance(statement, ast.Expr) else statement
            if not isinstance(found, (ast.FunctionDef, ast.Lambda)):
                raise Unfit("it is asynchronous")
            self.trees[code] = found
        return self.trees[code]

    # Statements

    def run(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Statements one after the other, as far as they are reached."""
        for statement in body:
            if self.c.b.block.is_terminated:
                return
            build = getattr(self, f"_{type(statement).__name__}", None)
            if build is None:
                raise Unfit(f"it has a statement of the kind {type(statement).__name__.lower()}")
            build(statement, scope)

    def _Pass(self, node: ast.Pass, scope: Scope) -> None:
        pass

    def _Return(self, node: ast.Return, scope: Scope) -> None:
        scope.gives(node.value, scope)

    def _Expr(self, node: ast.Expr, scope: Scope) -> None:
        value = node.value
        if isinstance(value, ast.Constant):
            return
        if isinstance(value, ast.Yield) and self.add is not None:
            self.add(ast.Constant(None) if value.value is None else value.value, scope)
        elif isinstance(value, ast.YieldFrom) and self.add is not None:
            self.loops.each(value.value, scope, lambda item: self.add_value(item, scope))
        elif scope.builds is not None and _is_append(value, scope.builds):
            assert isinstance(value, ast.Call)
            assert self.add is not None
            self.add(value.args[0], scope)
        else:
            self.e.value(value, scope)

    def add_value(self, item: Any_ | ast.expr, scope: Scope) -> None:
        """Add a record that is known by its value."""
        assert self.add is not None
        if isinstance(item, ast.expr):
            self.add(item, scope)
            return
        before = dict(scope.inner)
        scope.inner["item of it"] = item
        self.add(ast.Name("item of it", ast.Load()), scope)
        scope.inner = before

    def _Assign(self, node: ast.Assign, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id == scope.builds:
                self.clear()
                return
        for target in node.targets:
            if isinstance(target, ast.Tuple):
                if not isinstance(node.value, ast.Tuple) or len(node.targets) > 1:
                    raise Unfit("it takes a value apart")
                if len(target.elts) != len(node.value.elts):
                    raise Unfit("it takes a value apart")
                values = [self.e.value(each, scope) for each in node.value.elts]
                for each, value in zip(target.elts, values, strict=True):
                    self.e.store(scope, variable(each), value)
                return
        value = self.e.value(node.value, scope)
        for target in node.targets:
            self.e.store(scope, variable(target), value)

    def _AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            assign = ast.Assign([node.target], node.value)
            self._Assign(assign, scope)

    def _AugAssign(self, node: ast.AugAssign, scope: Scope) -> None:
        name = variable(node.target)
        value = self.e.value(node.value, scope)
        self.e.store(scope, name, binary(node.op, self.e.load(scope, name), value, self.c))

    def _Assert(self, node: ast.Assert, scope: Scope) -> None:
        if __debug__:  # python -O leaves them out
            self.c.check(self.e.test(node.test, scope))

    def _Raise(self, node: ast.Raise, scope: Scope) -> None:
        self.c.b.branch(self.c.bail)

    def _If(self, node: ast.If, scope: Scope) -> None:
        self.branch(
            self.e.test(node.test, scope),
            lambda: self.run(node.body, scope),
            lambda: self.run(node.orelse, scope),
        )

    def branch(self, condition: Any, then: Callable[[], None], other: Callable[[], None]) -> None:
        """One way or the other, and on from both if they come to an end."""
        ways = [self.c.block("then"), self.c.block("else")]
        self.c.b.cbranch(condition, *ways)
        open_ends = []
        for way, build in zip(ways, (then, other), strict=True):
            self.c.b.position_at_end(way)
            build()
            if not self.c.b.block.is_terminated:
                open_ends.append(self.c.b.block)
        if open_ends:
            after = self.c.block("after")
            for block in open_ends:
                self.c.b.position_at_end(block)
                self.c.b.branch(after)
            self.c.b.position_at_end(after)

    def _While(self, node: ast.While, scope: Scope) -> None:
        if node.orelse:
            raise Unfit("it has while with else")
        head, body, after = (self.c.block(n) for n in ("while", "do", "done"))
        self.c.go(head)
        self.c.b.cbranch(self.e.test(node.test, scope), body, after)
        self.c.b.position_at_end(body)
        scope.loops.append((head, after))
        self.run(node.body, scope)
        scope.loops.pop()
        if not self.c.b.block.is_terminated:
            self.c.b.branch(head)
        self.c.b.position_at_end(after)

    def _Break(self, node: ast.Break, scope: Scope) -> None:
        self.c.b.branch(scope.loops[-1][1])

    def _Continue(self, node: ast.Continue, scope: Scope) -> None:
        self.c.b.branch(scope.loops[-1][0])

    def _For(self, node: ast.For, scope: Scope) -> None:
        if node.orelse:
            raise Unfit("it has for with else")
        name = variable(node.target)

        def body(item: Any_ | ast.expr) -> None:
            value = self.e.value(item, scope) if isinstance(item, ast.expr) else item
            self.e.store(scope, name, value)
            self.run(node.body, scope)

        self.loops.each(node.iter, scope, body)


def _ending(gives: Gives) -> Gives:
    """How a generator returns: it has given all that it gives."""

    def end(result: ast.expr | None, scope: Scope) -> None:
        if result is not None:
            raise Unfit("it yields, and returns a value")
        gives(ast.Tuple([], ast.Load()), scope)

    return end


def _assigned(body: Sequence[ast.AST]) -> Iterator[str]:
    """The names that statements give values to."""
    for node in body:
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            raise Unfit("it changes a variable that is not its own")
        if isinstance(node, (ast.Lambda, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        yield from _assigned(list(ast.iter_child_nodes(node)))


def _is_append(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "append"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == name
        and len(node.args) == 1
        and not node.keywords
    )


def _built(body: Sequence[ast.stmt]) -> str | None:
    """The variable that begins as ``[]``, is then appended to, returned, and nothing else."""
    for i, node in enumerate(body):
        if isinstance(node, ast.AnnAssign):
            target: ast.expr = node.target
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        else:
            continue
        if not (isinstance(target, ast.Name) and isinstance(node.value, ast.List)):
            continue
        name = target.id
        after = [each for later in body[i + 1 :] for each in ast.walk(later)]
        known = sum(
            (isinstance(n, ast.Return) and isinstance(n.value, ast.Name) and n.value.id == name)
            or (isinstance(n, ast.Expr) and _is_append(n.value, name))
            for n in after
        )
        uses = [
            n for each in body for n in ast.walk(each) if isinstance(n, ast.Name) and n.id == name
        ]
        if not node.value.elts and len(uses) == known + 1:
            return name
    return None
