"""What can go wrong, and how it is said: the step, the fault, the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HeadraceError(Exception):
    """Anything Headrace itself refuses or reports."""


class PlanError(HeadraceError):
    """A pipeline that cannot be right, refused while it is being built."""


class ExpressionError(HeadraceError):
    """A value an expression cannot take, such as a zero divisor or a number out of range."""


class BadRecord(HeadraceError):
    """An input record that could not be read, with the file and the line it stood on."""


class StepError(HeadraceError):
    """A step that failed on a record while the pipeline ran."""


class EngineError(HeadraceError):
    """An engine that could not start or could not finish the job."""


def refuse_misspelt(names: Iterable[str], present: Iterable[str], where: str) -> None:
    """Refuse a field that no record has while one of nearly its name is there and not asked for.

    The column would be null throughout, in silence; a field that is just rare is let pass, and one
    or two letters are near to too much to tell.
    """
    asked = list(names)
    there = list(present)
    spare = [n for n in there if n not in asked]
    for name in asked:
        if name in there:
            continue
        close = [n for n in spare if n.lower() == name.lower()]
        if not close and len(name) > 2:
            close = difflib.get_close_matches(name, spare, n=1)
        if close:
            raise PlanError(
                f"{where}: no record has the field '{name}' of schema=; did you mean '{close[0]}'?"
            )


class NotYet(PlanError):
    """A value was asked for of an iteration that has not begun."""


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint at what was meant: ``; did you mean 'fare'?``, or the names there are."""
    known = list(names)
    lowered = {known_name.lower(): known_name for known_name in reversed(known)}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{lowered[close[0]]}'?"
    if not known:
        return ""
    shown = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    return f"; there are: {shown}"
