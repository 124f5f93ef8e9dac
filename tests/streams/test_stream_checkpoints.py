"""What a checkpoint fits, who may use it, and what is refused before anything is lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import headrace as hr
from headrace.checkpoints.control import Control
from headrace.checkpoints.lease import Lease
from headrace.checkpoints.shape import FORMAT
from headrace.io.gathering import GatheringWriter
from headrace.io.sealed import sealed
from headrace.io.sink import Sink
from headrace.plan.fingerprint import fingerprint
from headrace.state import changes_since, read_state
from tests.conftest import until
from tests.streams.conftest import Kafka, drop

SCHEMA = {"k": "string", "v": "bigint", "at": "timestamp"}


def put(folder: Path, name: str, *times: int) -> None:
    lines = [json.dumps({"k": "a", "v": t, "at": f"1970-01-01T00:00:{t:02d}Z"}) for t in times]
    drop(folder, name, "\n".join(lines) + "\n")


def source(folder: Path, until: str | None = "_DONE") -> hr.Stream:
    stream = hr.read_json(folder, schema=SCHEMA, follow=True, until=until)
    return stream.event_time("at", delay="0s")


def counts(folder: Path) -> hr.Stream:
    return source(folder).key_by("k").window(hr.tumbling("10s")).agg(n=hr.count())


def run(outlet: Any, engine: Any, checkpoint: Path) -> None:
    """Take in what is there, and stop; windows stay open in the checkpoint."""
    job = outlet.start(on=engine, checkpoint=checkpoint, trigger="available-now")
    assert job.wait(60)


@pytest.fixture
def begun(engine: Any, tmp_path: Path) -> Path:
    """A folder with input, output and a checkpoint of a job that has committed something."""
    return _begun(engine, tmp_path)


@pytest.fixture(scope="module")
def kept(engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for all tests that are refused, and so change nothing; two batches are done."""
    folder = _begun(engine, tmp_path_factory.mktemp("kept"))
    put(folder / "in", "b.json", 25)
    run(counts(folder / "in").write_parquet(folder / "out"), engine, folder / "state")
    return folder


def _begun(engine: Any, folder: Path) -> Path:
    put(folder / "in", "a.json", 1, 5, 12, 13)
    run(counts(folder / "in").write_parquet(folder / "out"), engine, folder / "state")
    assert list((folder / "out").glob("part-*"))
    return folder


@contextlib.contextmanager
def put_back(path: Path) -> Iterator[None]:
    """What is done to a file or folder meanwhile is undone."""
    aside = path.with_name(f"{path.name}.aside")
    (shutil.copytree if path.is_dir() else shutil.copy2)(path, aside)
    try:
        yield
    finally:
        (shutil.rmtree if path.is_dir() else Path.unlink)(path) if path.exists() else None
        aside.rename(path)


def test_a_job_goes_on(begun: Path, engine: Any) -> None:
    put(begun / "in", "b.json", 14, 25)
    run(counts(begun / "in").write_parquet(begun / "out"), engine, begun / "state")
    read = hr.read_parquet(begun / "out").collect(on="box").column("n").to_pylist()
    assert read == [2, 3]


def test_a_job_killed_before_it_gave_anything_goes_on(
    spark_engine: hr.Spark, tmp_path: Path
) -> None:
    put(tmp_path / "in", "a.json", 1, 5)
    again(tmp_path, spark_engine)
    (empty,) = (tmp_path / "out").glob("part-*")
    empty.unlink()  # written when a job is stopped
    put(tmp_path / "in", "b.json", 14)
    again(tmp_path, spark_engine)
    assert hr.read_parquet(tmp_path / "out").collect(on="box").column("n").to_pylist() == [2]


def again(folder: Path, engine: Any) -> None:
    """The same job once more."""
    run(counts(folder / "in").write_parquet(folder / "out"), engine, folder / "state")


def test_a_missing_note_is_refused_and_nothing_is_deleted(kept: Path, engine: Any) -> None:
    before = sorted((kept / "out").glob("part-*"))
    with put_back(kept / "out" / "_headrace"):
        shutil.rmtree(kept / "out" / "_headrace")
        with pytest.raises(hr.PlanError, match=r"_headrace.*is gone.*put it back"):
            again(kept, engine)
    assert sorted((kept / "out").glob("part-*")) == before


CHANGES: dict[str, Callable[[Path], Any]] = {
    "another sink folder": lambda p: counts(p / "in").write_parquet(p / "elsewhere"),
    "another format": lambda p: counts(p / "in").write_csv(p / "out"),
    "a column more": lambda p: counts(p / "in").with_columns(m="n * 2").write_parquet(p / "out"),
    "another source": lambda p: counts(p / "in2").write_parquet(p / "out"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_a_checkpoint_cannot_take_is_refused(kept: Path, engine: Any, change: str) -> None:
    put(kept / "in2", "a.json", 1)
    with pytest.raises(hr.PlanError, match=r"is of another pipeline: (output|source) 1 was"):
        run(CHANGES[change](kept), engine, kept / "state")


def test_another_body_of_a_function_is_refused(engine: Any, tmp_path: Path) -> None:
    def outlet(function: Any) -> Any:
        windows = source(tmp_path / "in").key_by("k").window(hr.tumbling("10s"))
        return windows.fold(0, function, returns="bigint").write_parquet(tmp_path / "out")

    put(tmp_path / "in", "a.json", 1, 5, 12)
    run(outlet(lambda state, row: state + row.v), engine, tmp_path / "state")
    put(tmp_path / "in", "b.json", 14)
    run(outlet(lambda state, row: state + row.v), engine, tmp_path / "state")
    with pytest.raises(hr.PlanError, match=r"the function of .* is another"):
        run(outlet(lambda state, row: state - row.v), engine, tmp_path / "state")


def test_a_fingerprint_is_of_what_a_function_does() -> None:
    def made(step: int) -> Any:
        return lambda x: x + step

    assert fingerprint(made(1)) == fingerprint(made(1))
    assert fingerprint(made(1)) != fingerprint(made(2))
    assert fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 1)
    assert fingerprint(lambda x: x + 1) != fingerprint(lambda x: x * 1)
    assert fingerprint(lambda x, y=1: x + y) != fingerprint(lambda x, y=2: x + y)
    assert fingerprint({1, 2, 3}) == fingerprint({3, 2, 1})


PARTS = {
    "spark": ["offsets", "commits", "state"],
    "box": ["headrace/box", "headrace/box/manifest.json", "headrace/box/data"],
}


@pytest.mark.parametrize("number", range(3))
def test_a_checkpoint_with_a_part_removed_is_refused(kept: Path, engine: Any, number: int) -> None:
    part = PARTS[engine.name][number]
    (path,) = (kept / "state" / part).parent.glob(f"{Path(part).name}*")
    with put_back(path):
        (shutil.rmtree if path.is_dir() else Path.unlink)(path)
        with pytest.raises(hr.HeadraceError, match=r"' is gone from it|box/data.*copy"):
            again(kept, engine)


def test_files_added_after_the_end_are_refused(begun: Path, engine: Any) -> None:
    drop(begun / "in", "_DONE", "")
    outlet = counts(begun / "in").write_parquet(begun / "out")
    assert outlet.start(on=engine, checkpoint=begun / "state").wait(60)
    assert outlet.start(on=engine, checkpoint=begun / "state").wait(60)  # nothing to do
    put(begun / "in", "late.json", 40)
    with pytest.raises(hr.PlanError, match=r"has ended, and 1 file was added.*after _DONE"):
        outlet.start(on=engine, checkpoint=begun / "state")


def test_another_format_of_checkpoint_is_refused(kept: Path, engine: Any) -> None:
    path = kept / "state" / "headrace" / "job.json"
    saved = json.loads(path.read_text())
    assert saved["format"] == FORMAT
    del saved["checksum"]
    with put_back(path):
        path.write_bytes(sealed({**saved, "format": FORMAT + 1}))
        with pytest.raises(hr.PlanError, match=f"has format {FORMAT + 1}, and this version"):
            again(kept, engine)
        path.write_text(json.dumps({**saved, "format": 4}))  # which had no checksums
        with pytest.raises(hr.PlanError, match=r"has format 4, and .* finish it with the version"):
            again(kept, engine)
        with pytest.raises(hr.PlanError, match="has format 4, and this version"):
            read_state(kept / "state")
        path.write_text(json.dumps(saved))
        with pytest.raises(hr.EngineError, match=r"job.json cannot be read \(its checksum"):
            again(kept, engine)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("text", ['{"job": "x', "[1]", ""])
def test_a_file_cut_short_is_named(kept: Path, engine: Any, which: int, text: str) -> None:
    other = {"spark": "control.json", "box": "box/manifest.json"}
    name = ("job.json", other[engine.name])[which]
    path = kept / "state" / "headrace" / name
    with put_back(path):
        path.write_text(text)
        with pytest.raises(hr.EngineError, match=rf"{name}:? (cannot|does|it does) .*copy"):
            again(kept, engine)


def test_a_note_and_a_listing_cut_short_are_named(kept: Path, engine: Any) -> None:
    (note,) = (kept / "out" / "_headrace").glob("*.json")
    with put_back(note):
        note.write_text(note.read_text()[:5])
        with pytest.raises(hr.EngineError, match=r"_headrace.*cannot be read.*copy"):
            again(kept, engine)
    listing = sorted((kept / "state" / "headrace" / "source-0").glob("*.json"))[0]
    with put_back(listing):
        listing.write_text("[")
        with pytest.raises(hr.EngineError, match=r"files-.*cannot be read"):
            again(kept, engine)


def test_a_checkpoint_under_a_file_is_refused(engine: Any, tmp_path: Path) -> None:
    put(tmp_path / "in", "a.json", 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(hr.HeadraceError, match="file/state"):
        counts(tmp_path / "in").start(on=engine, checkpoint=tmp_path / "file" / "state")


# Whose it is


class Evil:
    """Leaves a file behind where it is loaded from a pickle."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def as_link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to(path.with_name("real"))


FOREIGN: dict[str, Callable[[Path], None]] = {
    "another user's": lambda path: os.chown(path, 12345, -1),
    "writable by the group": lambda path: path.chmod(path.stat().st_mode | 0o020),
    "writable by anyone": lambda path: path.chmod(path.stat().st_mode | 0o002),
    "a link": as_link,
}
PLACES = {
    "box": ["", "headrace", "headrace/job.json", "headrace/box", "headrace/box/data-*",
            "headrace/source-0/files-*"],
    "spark": ["headrace", "headrace/control.json", "state", "state/0/0/*.changelog", "offsets/0"],
}  # fmt: skip


@pytest.mark.parametrize("how", FOREIGN)
def test_a_checkpoint_that_another_user_may_have_written_is_not_read(
    kept: Path, engine: Any, how: str, tmp_path: Path
) -> None:
    if how == "another user's" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    for number, place in enumerate(PLACES[engine.name]):
        if not place and how == "a link":
            continue  # the checkpoint's own folder may be one
        state = tmp_path / str(number) / "state"
        shutil.copytree(kept / "state", state)
        for each in (state, *(p for p in state.rglob("*") if p.is_dir())):
            each.chmod(0o755)  # as with a folder that the user made
        path = sorted(state.glob(place))[0] if place else state
        FOREIGN[how](path)
        outlet = counts(kept / "in").write_parquet(kept / "out")
        refusal = rf"{re.escape(str(path))} (belongs|can|is a)"
        with pytest.raises(hr.PlanError, match=refusal):
            run(outlet, engine, state)
        with pytest.raises(hr.PlanError, match=refusal):
            read_state(state)
        with pytest.raises(hr.PlanError, match=refusal):
            hr.move_state(state, tmp_path / "new")
        with pytest.raises(hr.PlanError, match=refusal):
            changes_since(state, [outlet])


def test_a_checkpoint_is_made_for_its_user_alone(engine: Any, tmp_path: Path) -> None:
    put(tmp_path / "in", "a.json", 1, 5, 12)
    before = os.umask(0o002)  # with which folders and files can be written by the group
    try:
        for _ in range(2):
            run(counts(tmp_path / "in").write_parquet(tmp_path / "out"), engine, tmp_path / "state")
    finally:
        os.umask(before)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_only_objects_of_users_are_pickled(
    engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And to look at a checkpoint, or to move it, loads none of them."""
    from headrace.cli import main

    put(tmp_path / "in", "a.json", 1, 5, 12)
    keyed = source(tmp_path / "in").key_by("k")
    run(keyed.window(hr.tumbling("10s")).agg(n=hr.count()), engine, tmp_path / "counts")
    assert read_state(tmp_path / "counts").pickles == []
    mark = tmp_path / "loaded"
    scan = keyed.scan(lambda seen, row: (Evil(mark), row.v), list, schema={"v": "bigint"})
    run(scan, engine, tmp_path / "scan")
    mark.unlink(missing_ok=True)
    (name,) = read_state(tmp_path / "scan").pickles
    assert name.startswith({"box": "headrace/box/data-", "spark": "state/0"}[engine.name])
    assert main(["state", "show", str(tmp_path / "scan")]) == 0
    assert f"pickled in these files; loading them runs code: {name}" in capsys.readouterr().out
    hr.move_state(tmp_path / "scan", tmp_path / "new")
    assert not mark.exists()


# Who may use it


def test_a_second_driver_is_refused(engine: Any, tmp_path: Path) -> None:
    put(tmp_path / "in", "a.json", 1)
    first = counts(tmp_path / "in").start(on=engine, checkpoint=tmp_path / "state")
    try:
        with pytest.raises(
            hr.EngineError, match=f"process {os.getpid()} on {socket.gethostname()}"
        ):
            counts(tmp_path / "in").start(on=engine, checkpoint=tmp_path / "state")
    finally:
        first.stop()
    second = counts(tmp_path / "in").start(on=engine, checkpoint=tmp_path / "state")
    second.stop()


def test_what_a_dead_driver_left_is_taken_over(tmp_path: Path) -> None:
    own = Control(str(tmp_path / "headrace"))
    own.make()
    code = (
        "import sys; from headrace.checkpoints.lease import Lease; "
        "from headrace.checkpoints.control import Control; Lease(Control(sys.argv[1])).take()"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "headrace")], check=True)
    assert (tmp_path / "headrace" / "driver.json").exists()
    lease = Lease(own)
    lease.take()
    with pytest.raises(hr.EngineError, match="is in use by process"):
        Lease(own).take()
    lease.release()
    Lease(own).take()


@pytest.mark.parametrize(("age", "refused"), [(1.0, True), (90.0, False)])
def test_another_machines_lease_ends_when_it_is_not_renewed(
    tmp_path: Path, age: float, refused: bool
) -> None:
    own = Control(str(tmp_path / "headrace"))
    own.make()
    said = {"host": "elsewhere", "process": 1, "started": 0.0, "renewed": time.time() - age}
    own.save("driver.json", {**said, "token": "x"})
    if refused:
        with pytest.raises(hr.EngineError, match="process 1 on elsewhere"):
            Lease(own).take()
    else:
        Lease(own).take()


def test_a_driver_whose_lease_was_taken_over_stops(tmp_path: Path) -> None:
    own = Control(str(tmp_path / "headrace"))
    own.make()
    lease = Lease(own)
    lease.take()
    own.save("driver.json", {"host": "elsewhere", "process": 7, "token": "x", "renewed": 0})
    lease.renewed = -1e9
    with pytest.raises(hr.EngineError, match="taken over by process 7 on elsewhere"):
        lease.renew()


# Servers


def test_another_redis_or_kafka_is_refused(
    engine: Any, tmp_path: Path, redis_url: str, kafka: Kafka
) -> None:
    first = hr.read_redis("in", schema={"v": "bigint"}, url=redis_url)
    job = first.start(on=engine, checkpoint=tmp_path / "redis")
    job.stop()
    other = hr.read_redis("in", schema={"v": "bigint"}, url=f"{redis_url}/3")
    with pytest.raises(hr.PlanError, match=r"source 1 was 'Redis streams in at .* and is"):
        other.start(on=engine, checkpoint=tmp_path / "redis")
    kafka.send("clusters", [{"v": 1}])
    again = Kafka()
    again.send("clusters", [{"v": 1}])
    topic = hr.read_kafka("clusters", servers=kafka.servers, schema={"v": "bigint"})
    topic.start(on=engine, checkpoint=tmp_path / "kafka").stop()
    moved = hr.read_kafka("clusters", servers=again.servers, schema={"v": "bigint"})
    shape = topic.node.source.identity()  # type: ignore[attr-defined]
    if shape == moved.node.source.identity():  # type: ignore[attr-defined]
        pytest.skip("this client's mock clusters all have one id")
    with pytest.raises(hr.PlanError, match="of cluster"):
        moved.start(on=engine, checkpoint=tmp_path / "kafka")


def test_redis_commits_an_epoch_once_though_two_write_it(redis_url: str) -> None:
    import redis

    from headrace.io.redis import RedisSink

    link = redis.Redis.from_url(redis_url)
    sink = RedisSink("twice", redis_url, None)
    adds = sink._add

    def meanwhile(together: Any, batch: Any) -> None:
        link.set("headrace:job:twice", 5)  # another driver commits the same epoch first
        adds(together, batch)

    sink._add = meanwhile  # type: ignore[method-assign]
    sink.store(pa.table({"v": [1]}), "job", 5)
    assert link.xlen("twice") == 0


def test_a_folder_source_and_a_sink_are_where_they_were_when_built(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "here" / "in", "a.json", 1, 2, 25)
    drop(tmp_path / "here" / "in", "_DONE", "")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    outlet = counts(Path("in")).write_parquet("out")
    monkeypatch.chdir(tmp_path / "there")
    assert outlet is not None
    assert outlet.start(on=engine).wait(60)
    found = hr.read_parquet(tmp_path / "here" / "out").collect(on="box").column("n").to_pylist()
    assert sorted(found) == [1, 2]
    assert not (tmp_path / "there" / "out").exists()


# The box


@pytest.mark.parametrize("scheduler", ["next-externalization", "first-found", "in-order"])
def test_every_scheduler_of_the_box_stops_and_goes_on(tmp_path: Path, scheduler: str) -> None:
    box = hr.Box(workers=3, scheduler=scheduler, commit_every="5ms", debug=True)
    (tmp_path / "in").mkdir()
    files = hr.read_json(tmp_path / "in", schema=SCHEMA, follow=True, until="_DONE")
    timed = files.event_time("at", delay="0s", idle="1h")  # silence must not end an epoch
    windows = timed.key_by("k").window(hr.tumbling("10s"))
    outlet = windows.agg(n=hr.count()).write_parquet(tmp_path / "out")
    for i in range(10):
        put(tmp_path / "in", f"{i}.json", *range(5 * i, 5 * i + 5))  # half a window
        run(outlet, box, tmp_path / "state")
    drop(tmp_path / "in", "_DONE", "")
    assert outlet.start(on=box, checkpoint=tmp_path / "state").wait(60)
    assert hr.read_parquet(tmp_path / "out").collect(on="box")["n"].to_pylist() == [10] * 5


def test_a_checkpoint_on_the_box_stays_small(tmp_path: Path) -> None:
    stream = hr.rate(20_000, splits=2).event_time("at", delay="0s")
    windows = stream.key_by("value").window(hr.sliding("200ms", every="50ms"))
    job = windows.agg(n=hr.count()).write_parquet(tmp_path / "out").start(
        on=hr.Box(workers=2, commit_every="10ms"), checkpoint=tmp_path / "state"
    )  # fmt: skip
    until(lambda: job._run.keeper.count > 40)  # type: ignore[attr-defined]
    job.stop()
    assert job.wait(60)
    files = list((tmp_path / "state" / "headrace" / "box").iterdir())
    assert len(files) < 24
    assert sum(f.stat().st_size for f in files) < 4 << 20
    assert not list((tmp_path / "out").glob("_temporary*"))


def test_a_sink_that_fails_in_its_commit_gets_the_same_again(tmp_path: Path) -> None:
    put(tmp_path / "in", "a.json", 1, 2, 15)
    outlet = counts(tmp_path / "in").write_to(Fails(str(tmp_path / "fail")))
    drop(tmp_path / "in", "_DONE", "")
    (tmp_path / "fail").touch()
    Fails.kept.clear()
    box = hr.Box(workers=2)
    with pytest.raises(hr.EngineError, match="not just now"):
        outlet.start(on=box, checkpoint=tmp_path / "state").wait(60)
    (tmp_path / "fail").unlink()
    assert outlet.start(on=box, checkpoint=tmp_path / "state").wait(60)
    assert sorted(n for counted in Fails.kept.values() for n in counted) == [1, 2]


class Fails(Sink):
    """Fails to commit while there is a file; counts an epoch once."""

    kept: ClassVar[dict[int, list[int]]] = {}

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self, schema: Any, task: str) -> Any:
        return GatheringWriter()

    def commit(self, messages: list[Any]) -> None:
        raise AssertionError("it commits by epoch")

    def commit_epoch(self, job: str, epoch: int, messages: list[Any]) -> None:
        if messages and Path(self.path).exists():
            raise OSError("not just now")
        for message in messages:
            with pa.ipc.open_stream(message) as stream:
                Fails.kept[epoch] = stream.read_all()["n"].to_pylist()
