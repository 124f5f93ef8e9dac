"""File descriptors for child processes, also where this process has no standard streams.

A daemon may run with its standard streams closed. The numbers 0, 1 and 2 then belong to whatever
was opened first, which a child must not take for its streams.
"""

from __future__ import annotations

import os
import subprocess


def has_stream(number: int) -> bool:
    """Whether this process has a standard stream. Python lets children inherit nothing else."""
    try:
        return os.get_inheritable(number)
    except OSError:
        return False


def stream_for_child(number: int) -> int | None:
    """The ``stdout`` or ``stderr`` argument of ``Popen``: our stream, or none of its own."""
    return None if has_stream(number) else subprocess.DEVNULL


def above_streams(number: int) -> int:
    """A duplicate of a descriptor that is none of the numbers of the standard streams."""
    import fcntl  # not on every platform

    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
