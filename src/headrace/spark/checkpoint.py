"""A job's checkpoint: whose it is, what it fits, and who may use it now.

Beside what Spark keeps there (``offsets``, ``commits``, ``state``) a checkpoint has a folder
``headrace``. ``job.json`` in it says which pipeline it is of; one that has changed in a way the
state cannot follow is refused. ``docs/checkpoints.md`` says what may change.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import psutil
import pyarrow as pa

from headrace.cache import could_be_anothers
from headrace.errors import EngineError, PlanError
from headrace.io.files import LOCAL, filesystem, load_json, replace_file
from headrace.io.sink import Sink
from headrace.jobs import Output
from headrace.operators import is_operator, operator_of
from headrace.operators.operator import Description, Input
from headrace.spark.control import Control
from headrace.spark.graph import Graph, OperatorFlow, SourceFlow
from headrace.spark.initial import FOLDER as INITIAL
from headrace.spark.initial import initial_of
from headrace.types import type_name

FORMAT = 3
"""The version of what we keep in a checkpoint; another is refused."""


def known_job(own: Control, graph: Graph, folder: str, session: Any) -> dict[str, Any]:
    """The job's name, its number of shards and its shape, as they were or as they will be."""
    shape = shape_of(graph)
    saved = own.load("job.json")
    if saved is None:
        system, root = filesystem(folder)
        if system.get_file_info(f"{root}/offsets").type.name == "Directory":
            raise PlanError(f"{folder!r} is the checkpoint of another program; give another folder")
        if own.system.get_file_info(f"{own.root}/{INITIAL}").type.name == "Directory":
            raise PlanError(
                f"state was being moved to {folder!r}, and not all of it has come; remove the "
                "folder, and move it again"
            )
        shards = max(1, int(session.sparkContext.defaultParallelism))
        return {"format": FORMAT, "job": uuid.uuid4().hex, "shards": shards, "shape": shape}
    if own.system is LOCAL and could_be_anothers(own.root):
        raise PlanError(
            f"the checkpoint {folder!r} belongs to another user, or anyone may write to it, and "
            "what it holds is run: state of Python functions is pickled; own it, and chmod o-w it"
        )
    if saved.get("format", 1) != FORMAT:
        raise PlanError(
            f"the checkpoint {folder!r} has format {saved.get('format', 1)}, and this version of "
            f"headrace reads format {FORMAT}; finish it with the version that began it, or give "
            "another checkpoint to begin anew"
        )
    changed = difference(saved["shape"], shape)
    if changed:
        raise PlanError(
            f"the checkpoint {folder!r} is of another pipeline: {changed}; go back to what it was, "
            "or give another checkpoint to begin anew"
        )
    _refuse_incomplete(own, graph, folder)
    _refuse_more_after_the_end(own, graph, folder)
    return saved


def _refuse_incomplete(own: Control, graph: Graph, folder: str) -> None:
    """Refuse a checkpoint of which a part was removed: Spark would begin that part anew."""
    batch = own.read().get("batch")
    if batch is None:
        if "base" in (own.load("job.json") or {}) and initial_of(own) is None:
            raise PlanError(
                f"state was moved to {folder!r}, and 'headrace/{INITIAL}' is gone from it; put it "
                "back, or move the state again"
            )
        return
    system, root = filesystem(folder)
    wanted = [f"offsets/{batch}"]
    if batch > 0:
        wanted.append(f"commits/{batch - 1}")
    if graph.operators:
        wanted.append("state")
    for name in wanted:
        if system.get_file_info(f"{root}/{name}").type.name == "NotFound":
            raise PlanError(
                f"the checkpoint {folder!r} is at batch {batch}, but {name!r} is gone from it; put "
                "it back, or give another checkpoint to begin anew"
            )


def _refuse_more_after_the_end(own: Control, graph: Graph, folder: str) -> None:
    if not own.read().get("finished"):
        return
    for source in graph.sources:
        offsets = source.offsets
        more = None if offsets is None else offsets.more_after_end(source_folder(own, source))
        if more:
            raise PlanError(
                f"the input of the checkpoint {folder!r} has ended, and {more}, which would never "
                "be read; give another checkpoint to read all of it"
            )


def source_folder(own: Control, source: SourceFlow) -> str:
    """Where a source keeps what it must not forget."""
    return f"{own.folder}/source-{source.number}"


# What a checkpoint depends on


def shape_of(graph: Graph) -> dict[str, list[str]]:
    """What a checkpoint depends on: sources, steps with state, outputs. Others may change."""
    steps = [_described(o) for o in graph.operators]
    return {
        "source": [_source_shape(s) for s in graph.sources],
        "step": [_step_shape(step) for step in steps],
        "function": [step.functions for step in steps],
        "output": [_output_shape(o) for o in graph.outputs],
    }


def _source_shape(source: SourceFlow) -> str:
    offsets = source.offsets
    kind = "a Spark DataFrame" if offsets is None else offsets.identity()
    event = source.event
    return kind if event is None else f"{kind}, event time {event.column}"


def _described(flow: OperatorFlow) -> Description:
    node = flow.node
    if not is_operator(node):
        return Description(f"{node.name} {node.detail}", 0)
    return operator_of(node, [Input((), i.schema) for i in node.inputs], "UTC").describe()


def _step_shape(step: Description) -> str:
    columns = f", keeping {_columns(step.keeps)}" if step.keeps else ""
    version = f", state version {step.version}" if step.version else ""
    return f"{step.text}{columns}{version}"


def _columns(fields: Sequence[pa.Field]) -> str:
    return ", ".join(f"{f.name} {type_name(f.type)}" for f in fields)


def _output_shape(output: Output) -> str:
    to = output.to
    if isinstance(to, Sink):
        return to.identity(output.node.schema)
    return "kept in memory" if to is None else type(to).__name__


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What changed between two shapes, in a few words; nothing if they are the same."""
    for kind in ("source", "step", "output"):
        before, after = old.get(kind, []), new.get(kind, [])
        for i, (a, b) in enumerate(zip(before, after, strict=False)):
            if a != b:
                return f"{kind} {i + 1} was '{a}' and is '{b}'"
        if len(before) != len(after):
            more = after[len(before) :] or before[len(after) :]
            verb = "is new" if len(after) > len(before) else "is gone"
            return f"{kind} {min(len(before), len(after)) + 1}, '{more[0]}', {verb}"
    for step, a, b in zip(new["step"], old.get("function", []), new["function"], strict=False):
        if a != b:
            return f"the function of '{step}' is another ({a}, now {b}), and results of it are kept"
    return ""


# Who uses it


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
        held = self._held()
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
        """What the file says; None if there is none, or a kill has cut it as it was written."""
        try:
            found = load_json(self.system, self.path, "it says which job uses the checkpoint")
        except EngineError:
            return None
        return found if isinstance(found, dict) else None

    def _write(self) -> None:
        me = psutil.Process()
        said = {
            "host": socket.gethostname(), "process": me.pid, "started": me.create_time(),
            "token": self.token, "renewed": time.time(),
        }  # fmt: skip
        replace_file(self.system, self.path, json.dumps(said).encode())
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
        """The job has ended."""
        held = self._held()
        if held is not None and held.get("token") == self.token:
            self.system.delete_file(self.path)
        self._unlock()


def _is_alive(held: Mapping[str, Any]) -> bool:
    """Whether the driver that a lease names may still run."""
    if held.get("host") == socket.gethostname():
        try:
            process = psutil.Process(int(held.get("process", -1)))
            return abs(process.create_time() - float(held["started"])) < 1.0
        except (psutil.Error, ValueError, KeyError):
            return False
    return time.time() - float(held.get("renewed", 0.0)) < Lease.EXPIRED
