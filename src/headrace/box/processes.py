"""Processes that run people's functions beside this one, where the interpreter lock is in the way.

A function that cannot be compiled holds the lock while it runs, so that threads take turns at it.
Once it has had a second of that, bundles go to processes instead, if the function could as well
have been written there: what it changes here it would not change there. An evaluator sends its
bundle, waits without the lock, and goes on with what came back. A bundle that fails there is run
again here, so that the error is the one that this process gives.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import Connection, Pipe
from typing import Any

import cloudpickle
import psutil
import pyarrow as pa

from headrace.box import row_worker
from headrace.box.effects import why_here
from headrace.descriptors import above_streams, stream_for_child
from headrace.errors import StepError
from headrace.kernels.row_steps import RowStep
from headrace.kernels.rows import Interpreter

AFTER = 1.0
"""Seconds of the interpreter's time after which a step goes to processes by itself."""
WAITS = {True: 60.0, False: 0.0}
"""Seconds to wait for a process that is free: where processes are asked for, and where not."""
_LOOK = 1.0
"""Seconds between looks at a process that has not answered."""
_STOPPED = 3
"""Looks in a row at which a process must be stopped to be given up: Ctrl-Z stops all at once."""
_PROGRAM = """
import sys
sys.path[:] = sys.argv[2:]
from headrace.box.row_worker import main
main(int(sys.argv[1]))
"""


class Pool:
    """As many processes as bundles may be run at once; started when they are first wanted."""

    def __init__(self, count: int, *, forced: bool) -> None:
        self.count, self.at_once = count, forced
        self._free: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._steps: dict[int, tuple[RowStep, bytes | None]] = {}
        """For each step what is sent of it; None if it stays here."""
        self._closed = self._started = False

    def run(self, step: RowStep, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """What comes of a bundle in a process; None if it is to be run here."""
        if not self.at_once and step.seconds < AFTER:
            return None
        program = self._program(step)
        if program is None or batch.num_rows == 0:
            return None
        worker = self._worker()
        if worker is None:
            return None
        reply = None
        try:
            reply = worker.ask(id(step), program, batch)
        except (EOFError, OSError) as error:
            if self._closed:
                worker.end()
                raise StepError("the job is over") from error
            raise StepError(f"{step.interpreter.label}: {worker.why_it_ended()}") from error
        finally:
            if worker.runs:
                self._free.put(worker)
        if isinstance(reply, str):
            with self._lock:
                self._steps[id(step)] = (step, None)
            return None
        return reply

    def _program(self, step: RowStep) -> bytes | None:
        with self._lock:
            known = self._steps.get(id(step))
            if known is None:
                known = self._steps[id(step)] = (step, self._pickled(step.interpreter))
            return known[1]

    def _pickled(self, interpreter: Interpreter) -> bytes | None:
        if why_here(interpreter.function, forced=self.at_once) is not None:
            return None
        data: bytes = cloudpickle.dumps(interpreter)
        return data

    def _worker(self) -> _Worker | None:
        """A process that is free. None while they are starting, unless they were asked for."""
        with self._lock:
            if self._closed:
                raise StepError("the job is over")
            if not self._started:
                self._started = True
                with contextlib.suppress(OSError):  # no more processes may be started
                    self._workers += [_Worker() for _ in range(self.count)]
                for worker in self._workers:
                    threading.Thread(target=self._await, args=(worker,), daemon=True).start()
            if not any(worker.runs for worker in self._workers):
                return None  # none could be started, or all have ended
        try:
            return self._free.get(timeout=WAITS[self.at_once])
        except queue.Empty:
            return None

    def _await(self, worker: _Worker) -> None:
        """Wait until a process has imported what it needs."""
        if worker.is_ready():
            self._free.put(worker)
        else:
            worker.end()
            if not any(each.runs for each in self._workers):
                for _ in range(self.count):
                    self._free.put(None)  # nobody waits for what will not come

    def close(self) -> None:
        """End the processes, whatever they are at."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.end()
        if workers:
            threading.Thread(target=_reap, args=(workers,), daemon=True).start()


def _reap(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.wait()


class _Worker:
    """A process, and the connection to it."""

    def __init__(self) -> None:
        ours, theirs = Pipe()
        number = above_streams(theirs.fileno())
        theirs.close()
        path = [os.path.abspath(each) for each in sys.path]
        command = [sys.executable, "-c", _PROGRAM, str(number), *path]
        try:
            self.process = subprocess.Popen(
                command,
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=stream_for_child(1),
                stderr=stream_for_child(2),
            )
        finally:
            os.close(number)
        self.connection: Connection = ours  # type: ignore[type-arg,unused-ignore]
        self.runs = True
        self.was_stopped = False
        self._sent: set[int] = set()

    def is_ready(self) -> bool:
        try:
            return self.connection.recv_bytes() == row_worker.READY
        except (EOFError, OSError):
            return False

    def ask(self, number: int, program: bytes, batch: pa.RecordBatch) -> Any:
        """A bundle run there; None if it failed, or why the function could not be loaded."""
        if number not in self._sent:
            self.connection.send_bytes(pickle.dumps((number, program)))
            self._sent.add(number)
            refused = self._reply()
            if refused != row_worker.READY:
                return refused.decode()
        self.connection.send_bytes(pickle.dumps((number, None)))
        self.connection.send_bytes(memoryview(row_worker.packed(batch)))
        reply = self._reply()
        return None if reply == row_worker.FAILED else row_worker.unpacked(reply)

    def _reply(self) -> bytes:
        """Wait for an answer; EOFError once the process has been stopped for some seconds."""
        stopped = 0
        while not self.connection.poll(_LOOK):
            stopped = stopped + 1 if self._is_stopped() else 0
            if stopped >= _STOPPED:
                self.was_stopped = True
                raise EOFError
        return self.connection.recv_bytes()

    def _is_stopped(self) -> bool:
        try:
            return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False

    def end(self) -> None:
        self.runs = False
        self.process.kill()

    def why_it_ended(self) -> str:
        """What happened to a process that no longer answers, and what to do about it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if not self.was_stopped:
                self.process.wait(1.0)  # its connection closes a moment before it ends
        ended = self.process.returncode
        self.end()
        self.process.wait()
        if self.was_stopped:
            return "its worker process was stopped (SIGSTOP); a function must not stop its process"
        if ended is None:
            return "its worker process closed its connection; a function must not close other files"
        if ended >= 0:
            return (
                f"its worker process ended with exit code {ended}; a function must not call "
                "os._exit: raise an exception instead"
            )
        name = signal.Signals(-ended).name
        if name == "SIGKILL":
            return (
                "its worker process was killed (SIGKILL), as the system does when memory runs out; "
                "use less memory in the function, or fewer processes: hr.Box(processes=1)"
            )
        return (
            f"its worker process crashed ({name}), probably in a library that the function calls; "
            "call that library by itself to find out"
        )
