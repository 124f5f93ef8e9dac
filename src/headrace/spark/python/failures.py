"""Errors on their way from a Python worker through the JVM to the person who runs the job."""

from __future__ import annotations

import base64
import contextlib
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.errors import EngineError, HeadraceError, StepError

if TYPE_CHECKING:
    from headrace.plan.node import Node

_WORKER_ENDED = "Python worker exited unexpectedly"
_DISK = re.compile("No space left on device|Read-only file system|Disk quota exceeded")
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
def driver_errors(*plans: Node) -> Iterator[None]:
    """On the driver: raise a worker's error as it was, and any other in one sentence.

    Args:
        plans: What runs, so that the end of a Python process is reported with its steps.
    """
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        found = read(error) or _java_ended(error)
        if found is not None:
            raise found from None
        if not _from_spark(error):
            raise
        gist = _gist(error)
        full = _DISK.search(_text(error))
        if full is not None:
            raise EngineError(
                f"Spark could not write to disk: {full.group()}; when it can, start the job again, "
                "and it goes on from its checkpoint"
            ) from None
        if _WORKER_ENDED in gist:
            raise _worker_ended(plans) from None
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


def _java_ended(error: Exception) -> EngineError | None:
    """The error to raise if Spark's Java process has ended; only it can refuse a connection."""
    from pyspark import SparkContext

    process = getattr(getattr(SparkContext, "_gateway", None), "proc", None)
    if process is None:
        return None
    if isinstance(error, (OSError, EOFError)) or _from_spark(error):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)  # its sockets close a moment before it ends
    code = process.poll()
    if code is None:
        return None
    how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"
    return EngineError(
        f"Spark's Java process {how} while the job ran. If memory ran out, give it more with "
        "hr.Spark(config={'spark.driver.memory': '4g'}); then start this program again"
    )


def _worker_ended(plans: Iterable[Node]) -> StepError:
    """The error of a Python process that ended without a word: nobody knows in which step."""
    from headrace.plan.time import nodes_of  # light to import without it

    steps = [
        f"{node.label} ({node.detail})" for plan in plans for node in nodes_of(plan) if node.python
    ]
    where = " or ".join(dict.fromkeys(steps)) or "the job"
    return StepError(
        f"{where}: its worker process was killed, was stopped or crashed. The system kills it when "
        "memory runs out (SIGKILL); a function must not call os._exit or stop its process"
    )


def _text(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    return f"{error} {java.toString() if java is not None else ''}"


def _from_spark(error: BaseException) -> bool:
    return type(error).__module__.split(".")[0] in ("py4j", "pyspark")


def _gist(error: Any) -> str:
    """The sentence that says what happened, out of a Java stack trace."""
    text = _text(error)
    if _WORKER_ENDED in text:
        return _WORKER_ENDED
    sentence = re.search(r"\[[A-Z_.]{4,}\] [^\n]*", text)
    if sentence and not sentence.group().endswith("Traceback (most recent call last):"):
        advice = r" If necessary set \S+ to \S+ to bypass this error\.?"
        return re.sub(advice, "", sentence.group())[:500]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if re.match(r"^[A-Za-z_.]*(Error|Exception)\b", line) and "py4j" not in line:
            return line[:500]
    return lines[0][:500] if lines else type(error).__name__
