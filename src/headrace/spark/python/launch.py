"""Runs in the place of Python: asks the warm process for a fork, and stands for it until it ends.

Spark starts this instead of Python (see ``warm.py``). It imports as little as it can, for that is
what every start costs, and not even headrace: it is run by its path. Whatever goes wrong, it
becomes the Python that Spark asked for.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import sys

ADDRESS = "HEADRACE_PYTHON"
"""The variable that says where the warm process listens."""


def ask(address: str, arguments: list[str]) -> tuple[socket.socket, int] | None:
    """Have the warm process fork: the connection to it, and its number. None if it does not."""
    warm = socket.socket(socket.AF_UNIX)
    try:
        warm.connect(address)
        request = marshal.dumps((arguments, dict(os.environ), os.getcwd()))
        socket.send_fds(warm, [len(request).to_bytes(4, "big")], [0, 1, 2])
        warm.sendall(request)
        told = warm.recv(4, socket.MSG_WAITALL)
    except OSError:
        return None
    return (warm, int.from_bytes(told, "big")) if len(told) == 4 else None


def main(arguments: list[str]) -> None:
    address = os.environ.get(ADDRESS)
    found = ask(address, arguments) if address else None
    if found is None:
        os.execv(sys.executable, [sys.executable, *arguments])
    warm, fork = found

    def end(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(fork, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    status = warm.recv(1)
    sys.exit(status[0] if status else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
