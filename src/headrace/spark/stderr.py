"""What Java prints as it starts: shown, but for lines that tell nobody anything.

Spark asks for a module of Java's that is still in incubation and for a package that newer ones do
not have, and Java says so each time. Java writes to the stream it is started with, so that is a
pipe of ours while it starts.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from headrace.descriptors import has_stream

_NOISE = (
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    b"WARNING: package sun.security.action not in java.base",
)


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """While Java is started: its standard error goes through a thread that leaves lines out."""
    if not has_stream(2):
        yield
        return
    real = os.dup(2)
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    os.dup2(writing, 2)
    os.close(writing)
    thread = threading.Thread(target=_pass_on, args=(reading, real), daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.dup2(real, 2)  # ours again; Java keeps the pipe for as long as it runs


def _pass_on(reading: int, real: int) -> None:
    rest = b""
    with contextlib.suppress(OSError):
        while data := os.read(reading, 1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            kept = [line for line in lines if not line.strip().startswith(_NOISE)]
            if kept:
                os.write(real, b"\n".join(kept) + b"\n")
            if rest and not any(noise.startswith(rest[: len(noise)]) for noise in _NOISE):
                os.write(real, rest)
                rest = b""
        if rest:
            os.write(real, rest)
    for number in (reading, real):
        with contextlib.suppress(OSError):
            os.close(number)
