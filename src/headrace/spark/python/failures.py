"""Errors on their way from a Python worker through the JVM to the person who runs the job."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator
from typing import Any

from headrace import errors
from headrace.errors import EngineError, HeadraceError, StepError

_MARK = re.compile(r"\[\[headrace ([A-Za-z]+) ([A-Za-z0-9+/=]*)\]\]")


class Carried(RuntimeError):
    """An error of ours in a form that survives being printed by Java."""

    def __init__(self, error: HeadraceError) -> None:
        text = base64.b64encode(str(error).encode()).decode()
        super().__init__(f"[[headrace {type(error).__name__} {text}]]")


@contextlib.contextmanager
def carrying() -> Iterator[None]:
    """In a worker: send our errors so that ``driver_errors`` can read them."""
    try:
        yield
    except HeadraceError as error:
        raise Carried(error) from error


@contextlib.contextmanager
def driver_errors() -> Iterator[None]:
    """On the driver: raise a worker's error as it was, and any other in one sentence."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        found = read(error)
        if found is not None:
            raise found from None
        if not _from_spark(error):
            raise
        gist = _gist(error)
        if re.match(r"\[[A-Z_.]*(OVERFLOW|BY_ZERO|CAST_INVALID|OUT_OF_RANGE|ARRAY_INDEX)", gist):
            raise StepError(f"a step that runs as Spark SQL failed: {gist}") from error
        raise EngineError(f"Spark could not finish the job: {gist}") from error


def read(error: BaseException) -> HeadraceError | None:
    """The error of ours that a Spark error carries."""
    seen: BaseException | None = error
    while seen is not None:
        match = _MARK.search(_text(seen))
        if match:
            kind = getattr(errors, match.group(1), HeadraceError)
            found = kind(base64.b64decode(match.group(2)).decode())
            return found if isinstance(found, HeadraceError) else None
        seen = seen.__cause__ or seen.__context__
    return None


def _text(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    return f"{error} {java.toString() if java is not None else ''}"


def _from_spark(error: BaseException) -> bool:
    return type(error).__module__.split(".")[0] in ("py4j", "pyspark")


def _gist(error: Any) -> str:
    """The sentence that says what happened, out of a Java stack trace."""
    sentence = re.search(r"\[[A-Z_.]{4,}\] [^\n]*", _text(error))
    if sentence:
        advice = r" If necessary set \S+ to \S+ to bypass this error\.?"
        return re.sub(advice, "", sentence.group())[:500]
    lines = [line.strip() for line in _text(error).splitlines() if line.strip()]
    for line in reversed(lines):
        if re.match(r"^[A-Za-z_.]*(Error|Exception)\b", line) and "py4j" not in line:
            return line[:500]
    return lines[0][:500] if lines else type(error).__name__
