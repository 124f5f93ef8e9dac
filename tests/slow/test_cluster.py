"""A real standalone cluster on this machine: a master, two workers, and a stream through them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

import headrace as hr
from headrace.spark.java import find_java

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, sys
import headrace as hr
said = json.loads(sys.argv[1])
engine = hr.Spark(master=said["master"], config={
    "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false",
})
print(engine.session.sparkContext.defaultParallelism, flush=True)
stream = hr.rate(500, splits=2, upto=5000, limit=500).select(
    k="value % 5", v="value", at="timestamp_micros(value * 10000)"
)
counts = (
    stream.event_time("at", delay="1s").key_by("k").window(hr.tumbling("10s"))
    .agg(n=hr.count(), total=hr.sum("v"))
)
job = counts.write_parquet(said["out"]).start(on=engine, checkpoint=said["checkpoint"])
job.wait()
print("ended", job.progress().records_in, flush=True)
engine.session.stop()
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Cluster:
    """Processes of Spark's own, from the installed package."""

    def __init__(self, folder: Path) -> None:
        self.home, self.folder = Path(pyspark.__path__[0]), folder
        self.port = free_port()
        self.master = f"spark://127.0.0.1:{self.port}"
        self.processes = [self.start("master.Master", "--port", str(self.port))]
        self.listening()
        for _ in range(2):
            self.processes.append(
                self.start("worker.Worker", self.master, "--cores", "1", "--memory", "1g")
            )

    def start(self, kind: str, *more: str) -> subprocess.Popen[bytes]:
        command = [
            str(self.home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}",
            *more, "--host", "127.0.0.1", "--webui-port", "0",
        ]  # fmt: skip
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(self.home),
            "SPARK_WORKER_DIR": str(self.folder / "work"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self.folder / f"{kind}-{time.time_ns()}.log").open("wb") as log:
            return subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def listening(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        pytest.fail("the master did not start")

    def stop(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    found.stop()


def test_a_stream_on_a_cluster_that_loses_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    said = {
        "master": cluster.master,
        "out": str(tmp_path / "out"),
        "checkpoint": str(tmp_path / "state"),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(said)], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "out").glob("part-*")):
            assert time.monotonic() < deadline, "nothing was written"
            assert process.poll() is None, process.communicate()[1][-3000:]
            time.sleep(0.1)
        os.killpg(cluster.processes[2].pid, signal.SIGKILL)
        out, errors = process.communicate(timeout=240)
        assert "ended 5000" in out or "ended" in out, errors[-3000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    got = hr.read_parquet(tmp_path / "out").collect(on="box").to_pylist()
    found = sorted((r["k"], round(r["window_start"].timestamp()), r["n"], r["total"]) for r in got)
    sums: dict[tuple[int, int], list[int]] = {}
    for value in range(5000):
        pair = sums.setdefault((value % 5, value // 1000 * 10), [0, 0])
        pair[0] += 1
        pair[1] += value
    assert found == sorted((k, start, n, total) for (k, start), (n, total) in sums.items())


REPEATED = """
import json, sys
import headrace as hr
said = json.loads(sys.argv[1])
engine = hr.Spark(master=said["master"], config={
    "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false",
})
numbers = hr.generate(lambda rank, size: range(rank, 100000, size), splits=2, schema=int)
grown = numbers.iterate(
    lambda s: s.map("value + 1"), reduce=hr.count(), until=lambda n: n < 1, at_most=3
)
print(grown.agg(t=hr.sum("value")).to_list(on=engine)[0].t, flush=True)
total = numbers.cycle(
    state=0, body=lambda s, i: s.filter(f"value % 3 = {i}").agg(n=hr.count()),
    update=lambda i, table: i + 1, at_most=2,
)
print(total.state(on=engine), flush=True)
names = hr.from_items([{"k": i, "name": f"n{i}"} for i in range(3)])
stream = hr.rate(500, splits=2, upto=1000, limit=500).select(k="value % 5")
job = stream.join(names, on="k").start(on=engine, checkpoint=said["checkpoint"])
job.wait()
print(job.result().num_rows, flush=True)
try:
    stream.join(names, on="k").start(on=engine)
except hr.PlanError as error:
    print(error, flush=True)
engine.session.stop()
"""


def test_iterations_and_tables_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """Where workers do not see the driver's files, what is kept is in Spark's memory."""
    said = {"master": cluster.master, "checkpoint": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-c", REPEATED, json.dumps(said)], cwd=ROOT, capture_output=True,
        text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    grown, state, rows, refused = done.stdout.splitlines()[-4:]
    assert (int(grown), int(state), int(rows)) == (sum(range(100_000)) + 300_000, 2, 600)
    assert "needs checkpoint= on a cluster" in refused
