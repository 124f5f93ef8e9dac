"""A job with a checkpoint on the box: what it begins with, and who writes the next."""

from __future__ import annotations

import copy
import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.box.manifest import Files, Saved, Snapshot
from headrace.box.sinks import WrittenByEpoch
from headrace.checkpoints.control import Control, opened
from headrace.checkpoints.lease import Lease
from headrace.checkpoints.messages import Message
from headrace.checkpoints.numbering import inputs_first, operators_of, origin_of, sources_of
from headrace.checkpoints.shape import (
    compiled,
    known_job,
    last_epochs,
    refuse_more_after_the_end,
    source_folder,
)
from headrace.checkpoints.state import JobState, copy_folder, refuse_used, schema_of
from headrace.errors import EngineError, PlanError
from headrace.io.files import CHECKPOINT_FIX, writing
from headrace.io.offsets import OffsetSource, replayable
from headrace.io.sink import Sink
from headrace.jobs import JobOutput
from headrace.operators import is_operator
from headrace.operators.stores import Note, TrackedStore, unpack
from headrace.plan.node import Node
from headrace.plan.sources import External
from headrace.windows import BEGINNING


class Keeper:
    """Writes a job's checkpoints, one after the other, in a thread of its own.

    First the checkpoint is there, then outputs are made visible; so a job that is killed in between
    makes them visible when it goes on.
    """

    def __init__(self, lease: Lease, files: Files, interval: float) -> None:
        self.lease, self.files, self.interval = lease, files, interval
        self.is_idle = True
        self.in_doubt = False
        """Whether a checkpoint is there, or soon will be, whose outputs may not be visible."""
        self.last = time.monotonic()
        self.took = 0.0
        self.count = self.written = 0
        """Checkpoints, and the bytes of their bundles."""
        self.sinks: list[WrittenByEpoch | None] = []
        self.offsets: list[OffsetSource | None] = []
        """The sources as they are read."""
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
        self.is_idle, self.in_doubt = False, True
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
        finally:
            self.lease.release()

    def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot, then make visible what the outputs were given."""
        messages = [None if w is None else w.close() for w in snapshot.writers]
        with writing(f"the checkpoint {self.files.folder!r}", CHECKPOINT_FIX):
            epoch = self.files.write(snapshot, [Message.of(message) for message in messages])
        data = self.files.sums.get(f"data-{epoch:010d}")
        self.written += 0 if data is None else data.size
        self.commit(epoch, messages)
        for source, state in zip(self.offsets, snapshot.sources, strict=True):
            if source is not None:
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
        """The job is over: let go of the checkpoint, once what is being written is."""
        if self.thread is None:
            self.lease.release()
        elif self.thread is not threading.current_thread():
            self.waiting.put(None)
            self.thread.join(10.0)


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
    folder: str, outputs: Sequence[JobOutput], shards: int, interval: float
) -> tuple[Kept, list[JobOutput]]:
    """Take a checkpoint, new or as it was; and the outputs, which write by its epochs."""
    ends = [output.node for output in outputs]
    _refuse_ended_parts(ends)
    offsets: list[OffsetSource] = []
    for beginning in sources_of(ends):
        origin = origin_of(beginning)
        if isinstance(origin, External):
            raise PlanError(f"a stream from {origin.engine} runs on {origin.engine} only")
        offsets.append(replayable(origin.source))
    own = opened(folder)
    lease, files = Lease(own), Files(own)
    try:
        known = known_job(own, outputs, folder, "box", shards)
        job = known.job
        own.make()
        lease.take()
        if known.before != own.load("job.json"):
            raise EngineError(f"another job used {folder!r} just now; start this one again")
        saved = files.begin() if known.before is None else files.load()
        files.sweep()
        changes = known.changes
        if any(saved.messages[i] is not None for i in changes.begun if i < len(saved.messages)):
            raise PlanError(
                f"the job of the checkpoint {folder!r} was killed before all of its outputs had "
                "what it holds; start it once more as it was and stop it, and then change it"
            )
        if saved.finished:
            refuse_more_after_the_end(own, outputs, folder)
        keeper = Keeper(lease, files, interval)
        lasts = last_epochs(known, len(outputs), saved.epoch)
        given = [
            _by_epoch(output, job["job"], i, last)
            for i, (output, last) in enumerate(zip(outputs, lasts, strict=True))
        ]
        keeper.sinks = [sink for sink, _ in given]
        operators = operators_of(ends)
        states = _states(operators, saved, int(job["shards"]))
        files.operators = job["operators"]
        pairs = zip(saved.operators, job["operators"], strict=False)
        for number, (before, now) in enumerate(pairs):
            if before["kinds"] != now["kinds"]:
                _adapt(operators[number], before, states[number])
        own.save("job.json", job)
        if saved.epoch >= 0:
            given_last = [None if m is None else m.value() for m in saved.messages]
            missing = [None] * (len(outputs) - len(given_last))
            new = [number for number, last in enumerate(lasts) if last < 0]
            keeper.commit(saved.epoch, [*given_last, *missing], new)
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
    output: JobOutput, job: str, number: int, epoch: int
) -> tuple[WrittenByEpoch | None, JobOutput]:
    """An output that goes to a sink as one that is made visible by epochs.

    ``epoch`` is the last so far, which may be yet to come; -1 if there is none.
    """
    if not isinstance(output.to, Sink):
        return None, output
    sink = copy.copy(output.to)
    # Two outputs may go to one place, so each has a name of its own.
    name = uuid.uuid5(uuid.UUID(job), str(number)).hex
    if epoch >= 0:
        sink.goes_on()
    sink.ready(name)
    if epoch > 0:
        sink.resume(epoch - 1)
    by_epoch = WrittenByEpoch(sink, output.node.schema, name)
    return by_epoch, JobOutput(output.node, output.to, sink=(by_epoch, True))


# State that moves


def read_state(folder: str, job: dict[str, Any]) -> JobState:
    """The state of a job that does not run, from its checkpoint. The lease is held."""
    own = opened(folder)
    files = Files(own)
    saved, shards = files.load(), int(job["shards"])
    if saved.epoch < 0:
        raise PlanError(
            f"the job of {folder!r} has written no checkpoint yet, so there is no state to look at "
            "or to move; start it where it is to run"
        )
    count = len(job["operators"])
    if saved.operators and [o["kinds"] for o in saved.operators] != [
        o["kinds"] for o in job["operators"]
    ]:
        raise PlanError(
            f"the pipeline of the checkpoint {folder!r} has changed since it was last written; "
            "start it once more and stop it, and then move its state"
        )
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
        files.pickled(saved, job["operators"]),
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
    files.epoch, files.operators = state.epoch - 1, state.operators
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
