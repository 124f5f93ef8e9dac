"""Who may use a checkpoint now."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

import psutil

from headrace.checkpoints.control import Control
from headrace.errors import EngineError
from headrace.io.files import LOCAL, load_json, save_json


class Lease:
    """The right of one driver to a checkpoint, for as long as it runs and says so.

    A file names the driver's host and process. On a local disk it is locked besides, and the lock
    ends with the process however that ends. The lease of another machine ends when it has not been
    renewed for a minute.
    """

    RENEWED = 10.0
    EXPIRED = 60.0

    def __init__(self, own: Control) -> None:
        self.system, self.path = own.system, f"{own.root}/driver.json"
        self.folder = own.folder.removesuffix("/headrace")
        self.token = uuid.uuid4().hex
        self.lock = threading.Lock()
        self.handle: int | None = None
        self.renewed = 0.0

    def take(self) -> None:
        """Take it, or refuse with who has it."""
        if self.system is LOCAL:
            handle = os.open(f"{self.path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(handle)
                raise self._refusal(self._held() or {}) from None
            self.handle = handle
        try:
            held = self._held()
        except EngineError:
            self._unlock()
            raise
        here = held is not None and held.get("host") == socket.gethostname()
        if held is not None and not (here and self.handle is not None) and _is_alive(held):
            self._unlock()
            raise self._refusal(held)
        self._write()
        if (self._held() or {}).get("token") != self.token:
            self._unlock()
            raise EngineError(f"the checkpoint {self.folder!r} was taken by another job; stop one")

    def _refusal(self, held: Mapping[str, Any]) -> EngineError:
        return EngineError(
            f"the checkpoint {self.folder!r} is in use by process {held.get('process', '?')} on "
            f"{held.get('host', 'this machine')}; stop that job first (two drivers would write "
            "results twice), or give another checkpoint"
        )

    def _unlock(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def _held(self) -> dict[str, Any] | None:
        """What the file says; None if there is none."""
        why = "it says which job uses the checkpoint (if none does, remove it)"
        found: dict[str, Any] | None = load_json(self.system, self.path, why)
        return found

    def _write(self) -> None:
        me = psutil.Process()
        said = {
            "host": socket.gethostname(), "process": me.pid, "started": me.create_time(),
            "token": self.token, "renewed": time.time(),
        }  # fmt: skip
        save_json(self.system, self.path, said)
        self.renewed = time.monotonic()

    def renew(self) -> None:
        """Called now and then while the job runs."""
        with self.lock:
            if time.monotonic() - self.renewed < self.RENEWED:
                return
            held = self._held()
            if held is not None and held.get("token") not in (None, self.token):
                raise EngineError(
                    f"the checkpoint {self.folder!r} was taken over by process "
                    f"{held.get('process')} on {held.get('host')}; this job stops, so that nothing "
                    "is written twice"
                )
            try:
                self._write()
            except OSError:  # once is no harm: it holds for a minute
                if time.monotonic() - self.renewed > self.EXPIRED / 2:
                    raise

    def release(self) -> None:
        """The job has ended; whoever says so first."""
        with self.lock:
            with contextlib.suppress(EngineError):
                held = self._held()
                if held is not None and held.get("token") == self.token:
                    self.system.delete_file(self.path)
            self._unlock()


def _is_alive(held: Mapping[str, Any]) -> bool:
    """Whether the driver that a lease names may still run."""
    if held.get("host") == socket.gethostname():
        try:
            process = psutil.Process(int(held.get("process", -1)))
            return bool(abs(process.create_time() - float(held["started"])) < 1.0)
        except (psutil.Error, ValueError, KeyError):
            return False
    return time.time() - float(held.get("renewed", 0.0)) < Lease.EXPIRED
