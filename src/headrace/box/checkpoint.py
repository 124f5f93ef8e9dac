"""A job's checkpoint on the box: what is in its files, and who writes them.

In the folder ``headrace/box`` of a checkpoint ``manifest.json`` says how far the sources were read,
what the states note, which outputs are yet to be made visible, and in which files the states'
bundles are. It is replaced at once, so a checkpoint is there whole or is the one before. Bundles
never change, so only new ones are written; files of which little is still needed are rewritten.
"""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.box.sinks import WrittenByEpoch
from headrace.checkpoints.control import Control
from headrace.checkpoints.lease import Lease
from headrace.checkpoints.numbering import inputs_first, operators_of, origin_of, sources_of
from headrace.checkpoints.shape import (
    compiled,
    known_job,
    refuse_more_after_the_end,
    source_folder,
)
from headrace.checkpoints.state import JobState, copy_folder, refuse_used, schema_of
from headrace.errors import EngineError, PlanError
from headrace.io.files import LOCAL, load_json, replace_file, sync
from headrace.io.offsets import OffsetSource, replayable
from headrace.io.sink import Sink
from headrace.jobs import Output
from headrace.operators import is_operator
from headrace.operators.stores import Name, Note, TrackedStore, pack, unpack
from headrace.plan.nodes import External, Node
from headrace.windows import BEGINNING

Key = tuple[int, int, int, int, int]
"""A bundle: operator, shard, kind, slice, number."""
_ALIGNED = 64
_MANY_FILES = 16
_TOLD = ("epoch", "finished", "sources", "notes", "promised", "messages")
"""What a manifest says beside where bundles are."""


@dataclass
class Saved:
    """What a checkpoint has."""

    epoch: int = -1
    """The last that counts; -1 if there is none."""
    finished: bool = False
    sources: list[dict[str, Any]] = field(default_factory=list)
    notes: list[list[Note]] = field(default_factory=list)
    """Of each operator, by shard."""
    bundles: dict[tuple[int, int], dict[Name, pa.Buffer]] = field(default_factory=dict)
    """Of each operator and shard."""
    promised: list[int] = field(default_factory=list)
    """The watermark that each operator has passed on."""
    messages: list[Any] = field(default_factory=list)
    """What each output's writer said of the last epoch, which may not have been committed."""


@dataclass
class Snapshot:
    """A job at a moment at which nothing was under way."""

    sources: list[dict[str, Any]]
    notes: list[list[Note]] = field(default_factory=list)
    changes: dict[Key, pa.RecordBatch | pa.Buffer | None] = field(default_factory=dict)
    promised: list[int] = field(default_factory=list)
    writers: list[Any] = field(default_factory=list)
    """Of the outputs, with what they wrote since the last; None if nothing."""
    finished: bool = False
    final: bool = False
    """Whether the job ends with it."""


class Files:
    """The files of a checkpoint, and where in them each bundle is."""

    def __init__(self, own: Control) -> None:
        self.system, self.root = own.system, f"{own.root}/box"
        self.folder = own.folder.removesuffix("/headrace")
        self.live: dict[Key, tuple[str, int, int]] = {}
        self.sizes: dict[str, int] = {}
        self.epoch = -1
        self.told: dict[str, Any] = {"messages": ""}

    @property
    def _manifest(self) -> str:
        return f"{self.root}/manifest.json"

    # Reading

    def load(self) -> Saved:
        """What the checkpoint has, its bundles as they are in the files."""
        why = "the job cannot go on without it"
        told: dict[str, Any] | None = load_json(self.system, self._manifest, why)
        if told is None:
            raise PlanError(
                f"the checkpoint {self.folder!r} is of a job that has begun, but "
                "'headrace/box/manifest.json' is gone from it; put it back, or give another "
                "checkpoint to begin anew"
            )
        if not isinstance(told, dict) or "bundles" not in told:
            raise self._damaged("manifest.json", "it does not say what it should")
        self.told = {name: told[name] for name in _TOLD}
        self.epoch, self.sizes = told["epoch"], dict(told["files"])
        files = list(self.sizes)
        self.live = {tuple(b[:5]): (files[b[5]], b[6], b[7]) for b in told["bundles"]}
        saved = Saved(self.epoch, told["finished"], told["sources"], told["notes"])
        saved.promised = told["promised"]
        data = {name: self._data(name) for name in files}
        for (operator, shard, *name), (file, start, length) in self.live.items():
            bundle = data[file].slice(start, length)
            saved.bundles.setdefault((operator, shard), {})[tuple(name)] = bundle  # type: ignore[index]
        if told["messages"]:
            try:
                with self.system.open_input_stream(f"{self.root}/{told['messages']}") as file:
                    saved.messages = pickle.loads(file.read())
            except (OSError, pickle.PickleError) as error:
                raise self._damaged(told["messages"], error) from None
        return saved

    def _data(self, name: str) -> pa.Buffer:
        path = f"{self.root}/{name}"
        try:
            if self.system is LOCAL:
                data = pa.memory_map(path).read_buffer()
            else:
                with self.system.open_input_file(path) as file:
                    data = file.read_buffer()
        except OSError as error:
            raise self._damaged(name, error) from None
        if data.size != self.sizes[name]:
            raise self._damaged(name, f"it has {data.size} bytes, not {self.sizes[name]}")
        return data

    def _damaged(self, name: str, why: Any) -> EngineError:
        return EngineError(
            f"the checkpoint {self.folder!r} cannot be read: headrace/box/{name}: {why}; put it "
            "back from a copy, or begin anew with another checkpoint"
        )

    # Writing

    def begin(self) -> Saved:
        """The checkpoint of a job that has done nothing yet."""
        self.system.create_dir(self.root, recursive=True)
        self._save({"epoch": -1, **vars(Snapshot([])), "messages": ""})
        return Saved()

    def _save(self, what: dict[str, Any]) -> None:
        """Replace the manifest."""
        self.told = {name: what[name] for name in _TOLD}
        numbers = {name: i for i, name in enumerate(self.sizes)}
        bundles = [[*key, numbers[f], start, n] for key, (f, start, n) in self.live.items()]
        manifest = {**self.told, "files": self.sizes, "bundles": bundles}
        replace_file(self.system, self._manifest, json.dumps(manifest).encode())

    def write(self, snapshot: Snapshot, messages: list[Any]) -> int:
        """Write the next checkpoint; its epoch."""
        epoch = self.epoch + 1
        live = dict(self.live)
        for key in snapshot.changes:
            live.pop(key, None)
        new = f"data-{epoch:010d}"
        size = self._write_bundles(new, snapshot, live)
        said = f"messages-{epoch:010d}" if any(m is not None for m in messages) else ""
        if said:
            with self.system.open_output_stream(f"{self.root}/{said}") as out:
                out.write(pickle.dumps(messages))
            sync(self.system, f"{self.root}/{said}")
        used = {file for file, _, _ in live.values()}
        sizes = {name: n for name, n in {**self.sizes, new: size}.items() if name in used}
        gone = {*self.sizes, new} - sizes.keys()
        self.epoch, self.live, self.sizes = epoch, live, sizes
        self._save({"epoch": epoch, **vars(snapshot), "messages": said})
        for name in (*gone, f"messages-{epoch - 1:010d}"):
            with contextlib.suppress(FileNotFoundError):
                self.system.delete_file(f"{self.root}/{name}")
        return epoch

    def settle(self) -> None:
        """Forget what outputs were given last."""
        if self.told["messages"]:
            self._save({**self.told, "messages": ""})
            with contextlib.suppress(FileNotFoundError):
                self.system.delete_file(f"{self.root}/messages-{self.epoch:010d}")

    def _write_bundles(
        self, new: str, snapshot: Snapshot, live: dict[Key, tuple[str, int, int]]
    ) -> int:
        """Write what is new, and what is left of files that are not worth keeping."""
        puts = [(key, batch) for key, batch in snapshot.changes.items() if batch is not None]
        moved = list(self._moved(live, sum(_size(batch) for _, batch in puts)))
        if not puts and not moved:
            return 0
        at = 0
        with self.system.open_output_stream(f"{self.root}/{new}") as out:
            for key, data in [*((k, _packed(b)) for k, b in puts), *moved]:
                out.write(data)
                live[key] = (new, at, data.size)
                padding = -data.size % _ALIGNED
                out.write(bytes(padding))
                at += data.size + padding
        sync(self.system, f"{self.root}/{new}")
        return at

    def _moved(
        self, live: dict[Key, tuple[str, int, int]], new: int
    ) -> Iterator[tuple[Key, pa.Buffer]]:
        """The bundles of files that are rewritten: little of them is live, or they are many."""
        left = dict.fromkeys(self.sizes, 0)
        for file, _, length in live.values():
            left[file] += length
        rewritten = {name for name, n in left.items() if 0 < 2 * n < self.sizes[name]}
        if len(left) > _MANY_FILES:
            for name in sorted(left, key=lambda name: left[name]):
                if left[name] > 2 * new:
                    break
                rewritten.add(name)
                new += left[name]
        data = {name: self._data(name) for name in rewritten}
        for key, (file, start, length) in list(live.items()):
            if file in data:
                yield key, data[file].slice(start, length)


def _packed(bundle: pa.RecordBatch | pa.Buffer) -> pa.Buffer:
    return bundle if isinstance(bundle, pa.Buffer) else pack(bundle)


def _size(bundle: pa.RecordBatch | pa.Buffer) -> int:
    return int(bundle.size if isinstance(bundle, pa.Buffer) else bundle.nbytes)


class Keeper:
    """Writes a job's checkpoints, one after the other, in a thread of its own.

    First the checkpoint is there, then outputs are made visible; so a job that is killed in between
    makes them visible when it goes on.
    """

    def __init__(
        self, own: Control, lease: Lease, files: Files, saved: Saved, interval: float
    ) -> None:
        self.own, self.lease, self.files, self.saved = own, lease, files, saved
        self.interval = interval
        self.is_idle = True
        self.in_doubt = False
        """Whether a checkpoint is there whose outputs may not be visible."""
        self.last = time.monotonic()
        self.took = 0.0
        self.count = self.written = 0
        """Checkpoints, and the bytes of their bundles."""
        self.sinks: list[WrittenByEpoch | None] = []
        self.offsets: list[OffsetSource] = []
        self.waiting: queue.SimpleQueue[Snapshot | None] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None

    def begin(
        self, kept: Callable[[Snapshot], None], failed: Callable[[BaseException], None]
    ) -> None:
        """Start; ``kept`` is called after each checkpoint."""
        self.thread = threading.Thread(
            target=self._run, args=(kept, failed), name="headrace-checkpoints", daemon=True
        )
        self.thread.start()

    def is_due(self) -> bool:
        """Whether it is time for the next one; a slow disk is left twice the time it takes."""
        wait = max(self.interval, 2 * self.took)
        return self.is_idle and time.monotonic() - self.last >= wait

    def take(self, snapshot: Snapshot) -> None:
        """Write a snapshot, soon."""
        self.is_idle = False
        self.waiting.put(snapshot)

    def _run(
        self, kept: Callable[[Snapshot], None], failed: Callable[[BaseException], None]
    ) -> None:
        try:
            while True:
                try:
                    snapshot = self.waiting.get(timeout=1.0)
                except queue.Empty:
                    self.lease.renew()
                    continue
                if snapshot is None:
                    return
                begun = time.monotonic()
                self.write(snapshot)
                self.last = time.monotonic()
                self.took = self.last - begun
                self.is_idle = True
                kept(snapshot)
                self.lease.renew()
        except BaseException as error:
            failed(error)

    def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot, then make visible what the outputs were given."""
        messages = [None if w is None else w.close() for w in snapshot.writers]
        try:
            self.in_doubt = True
            epoch = self.files.write(snapshot, messages)
        except OSError as error:
            raise EngineError(
                f"the checkpoint {self.files.folder!r} cannot be written: {error}; when it can, "
                "start the job again, and it goes on"
            ) from error
        self.written += self.files.sizes.get(f"data-{epoch:010d}", 0)
        self.commit(epoch, messages)
        for source, state in zip(self.offsets, snapshot.sources, strict=True):
            source.forget(state["at"])
        self.count += 1

    def settle(self) -> None:
        """Outputs have all that the checkpoint holds: it need not say what they were given."""
        self.files.settle()

    def commit(self, epoch: int, messages: Sequence[Any], besides: Sequence[int] = ()) -> None:
        """Make an epoch visible in every output but some."""
        for number, (sink, message) in enumerate(zip(self.sinks, messages, strict=True)):
            if sink is not None and number not in besides:
                sink.commit(epoch, [] if message is None else [message])
        self.in_doubt = False

    def end(self) -> None:
        """The job is over: let go of the checkpoint."""
        if self.thread is not None and self.thread is not threading.current_thread():
            self.waiting.put(None)
            self.thread.join(10.0)
        self.lease.release()


@dataclass
class Kept:
    """What a run needs to go on from a checkpoint, and to write the next."""

    keeper: Keeper
    operators: list[Node]
    states: dict[int, list[tuple[TrackedStore, Note]]]
    """For each step with state, by its identity, the store and the note of each shard."""
    sources: tuple[list[OffsetSource], list[dict[str, Any]], list[str]]
    """The sources, what is known of each, and where each keeps what it must not forget."""


def kept_in(
    folder: str, outputs: Sequence[Output], shards: int, interval: float
) -> tuple[Kept, list[Output]]:
    """Take a checkpoint, new or as it was; and the outputs, which write by its epochs."""
    ends = [output.node for output in outputs]
    _refuse_ended_parts(ends)
    offsets: list[OffsetSource] = []
    for beginning in sources_of(ends):
        origin = origin_of(beginning)
        if isinstance(origin, External):
            raise PlanError(f"a stream from {origin.engine} runs on {origin.engine} only")
        offsets.append(replayable(origin.source))
    own = Control(f"{folder}/headrace")
    lease, files = Lease(own), Files(own)
    try:
        known = known_job(own, outputs, folder, "box", shards)
        job = known.job
        own.make()
        lease.take()
        if known.before != own.load("job.json"):
            raise EngineError(f"another job used {folder!r} just now; start this one again")
        saved = files.begin() if known.before is None else files.load()
        changes = known.changes
        if any(saved.messages[i] is not None for i in changes.begun if i < len(saved.messages)):
            raise PlanError(
                f"the job of the checkpoint {folder!r} was killed before all of its outputs had "
                "what it holds; start it once more as it was and stop it, and then change it"
            )
        if saved.finished:
            refuse_more_after_the_end(own, outputs, folder)
        keeper = Keeper(own, lease, files, saved, interval)
        given = [
            _by_epoch(output, job["job"], i, -1 if i in changes.begun else saved.epoch - 1)
            for i, output in enumerate(outputs)
        ]
        keeper.sinks = [sink for sink, _ in given]
        keeper.offsets = offsets
        operators = operators_of(ends)
        states = _states(operators, saved, int(job["shards"]))
        for number in changes.grown:
            assert known.before is not None
            _adapt(operators[number], known.before["operators"][number], states[number])
        own.save("job.json", job)
        if saved.epoch >= 0:
            missing = [None] * (len(outputs) - len(saved.messages))
            keeper.commit(saved.epoch, [*saved.messages, *missing], besides=changes.begun)
        for sink in keeper.sinks:
            if sink is not None:
                sink.sink.begin(sink.schema)
    except BaseException:
        lease.release()
        raise
    folders = [source_folder(own, number) for number in range(len(offsets))]
    sources = [*saved.sources, *({} for _ in range(len(offsets) - len(saved.sources)))]
    by_node = {id(node): state for node, state in zip(operators, states, strict=True)}
    kept = Kept(keeper, operators, by_node, (offsets, sources, folders))
    return kept, [output for _, output in given]


Shard = tuple[TrackedStore, Note]


def _states(operators: Sequence[Node], saved: Saved, shards: int) -> list[list[Shard]]:
    """The store and the note of each shard of each step with state."""
    states = []
    for number in range(len(operators)):
        notes = saved.notes[number] if number < len(saved.notes) else []
        known: list[Note] = [*notes, *({} for _ in range(shards - len(notes)))]
        bundles = [saved.bundles.get((number, shard), {}) for shard in range(shards)]
        states.append([(TrackedStore(b), n) for b, n in zip(bundles, known, strict=True)])
    return states


def _adapt(node: Node, before: dict[str, Any], shards: list[Shard]) -> None:
    """Have a step's states follow from aggregates that were fewer before."""
    schemas = {int(kind): schema_of(told) for kind, told in before["kinds"].items()}
    kept = [
        (note, {name: unpack(data, schemas[name[0]]) for name, data in store.packed.items()})
        for store, note in shards
    ]
    compiled(node).adapt(kept, schemas)
    for (store, _), (_, bundles) in zip(shards, kept, strict=True):
        for name, batch in bundles.items():
            store.put(*name, batch)


def _refuse_ended_parts(ends: Sequence[Node]) -> None:
    """Refuse steps that wait for the end of bounded input beside a stream that does not end."""
    for node in inputs_first(ends):
        if is_operator(node) and node.needs_end:
            raise PlanError(
                f"{node.label}: beside a stream that does not end, a checkpoint takes bounded "
                "input only as it is read; write this part first and read it, or leave the "
                "checkpoint out"
            )


def _by_epoch(
    output: Output, job: str, number: int, epoch: int
) -> tuple[WrittenByEpoch | None, Output]:
    """An output that goes to a sink as one that is made visible by epochs, up to one so far."""
    if not isinstance(output.to, Sink):
        return None, output
    sink = copy.copy(output.to)
    # Two outputs may go to one place, so each has a name of its own.
    name = uuid.uuid5(uuid.UUID(job), str(number)).hex
    sink.ready(name)
    if epoch >= 0:
        sink.resume(epoch)
    by_epoch = WrittenByEpoch(sink, output.node.schema, name)
    return by_epoch, Output(output.node, output.to, sink=(by_epoch, True))


# State that moves


def read_state(folder: str, job: dict[str, Any]) -> JobState:
    """The state of a job that does not run, from its checkpoint. The lease is held."""
    own = Control(f"{folder}/headrace")
    saved, shards = Files(own).load(), int(job["shards"])
    count = len(job["operators"])
    notes = [[*known, *({} for _ in range(shards - len(known)))] for known in saved.notes]
    sequences = [max(source["sequence"].values(), default=0) for source in saved.sources]
    return JobState(
        job,
        saved.epoch,
        saved.finished,
        saved.sources,
        [source_folder(own, number) for number in range(len(saved.sources))],
        notes or [[{} for _ in range(shards)] for _ in range(count)],
        [[saved.bundles.get((n, s), {}) for s in range(shards)] for n in range(count)],
        saved.promised or [BEGINNING] * count,
        max(sequences, default=0),
        saved.messages,
    )


def write_state(folder: str, state: JobState) -> None:
    """Make a checkpoint with which a job on the box goes on. A kill leaves one that is refused."""
    refuse_used(folder)
    own = Control(f"{folder}/headrace")
    own.make()
    for number, source in enumerate(state.folders):
        copy_folder(source, source_folder(own, number))
    files = Files(own)
    files.begin()
    files.epoch = state.epoch - 1
    sources = [
        {
            "at": source["at"], "frontier": source["frontier"], "ended": source["ended"],
            "sequence": dict.fromkeys(source["at"], state.turn + 1),
        }
        for source in state.sources
    ]  # fmt: skip
    snapshot = Snapshot(sources, state.notes, promised=state.promised, finished=state.finished)
    for number, shards in enumerate(state.bundles):
        for shard, bundles in enumerate(shards):
            for name, data in bundles.items():
                snapshot.changes[(number, shard, *name)] = data
    files.write(snapshot, state.messages)
    job = {name: value for name, value in state.job.items() if name != "base"}
    own.save("job.json", {**job, "engine": "box"})
