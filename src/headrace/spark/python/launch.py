"""Runs in place of Python: has the fork server make the process, and stands for it until it ends.

Spark starts this instead of Python (see ``fork_server.py``). It imports as little as it can, for
every start pays for that, and not even headrace: it is run by its path. Whatever goes wrong, and
after a few seconds without an answer, it becomes the Python that Spark asked for.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import sys
import time

ADDRESS = "HEADRACE_PYTHON"
"""The variable that says where the fork server listens."""
PATIENCE = 5.0
"""Seconds in which the other end must have answered. Spark gives some processes 10 s to start."""
GO = b"!"
"""What a fork waits for, and its streams with it: till then this may still become Python itself.

Streams that lay with a server that hangs would never be closed for whoever reads from them.
"""


def receive(connection: socket.socket, count: int, deadline: float) -> bytes:
    """That many bytes, or fewer if the other end closed; TimeoutError past the deadline."""
    data = b""
    while len(data) < count:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(count - len(data))
        if not part:
            break
        data += part
    return data


def ask(address: str, arguments: list[str]) -> tuple[socket.socket, int] | None:
    """Have the server fork: the connection to the fork, and its number. None if it does not."""
    deadline = time.monotonic() + PATIENCE
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE)
    try:
        connection.connect(address)
        request = marshal.dumps((arguments, dict(os.environ), os.getcwd()))
        connection.sendall(len(request).to_bytes(4, "big") + request)
        number = receive(connection, 4, deadline)
        if len(number) == 4:
            socket.send_fds(connection, [GO], [0, 1, 2])
            return connection, int.from_bytes(number, "big")
    except OSError:  # a time-out is one, too
        pass
    connection.close()
    return None


def main(arguments: list[str]) -> None:
    address = os.environ.get(ADDRESS)
    found = ask(address, arguments) if address else None
    if found is None:
        os.execv(sys.executable, [sys.executable, *arguments])
    connection, fork = found

    def end(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(fork, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    connection.settimeout(None)  # for as long as the fork runs, which closes it by ending
    status = connection.recv(1)
    sys.exit(status[0] if status else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
