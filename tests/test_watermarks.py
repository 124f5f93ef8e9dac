"""Watermarks as shards and driver know them, and logs that must survive a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import EngineError
from headrace.io.kafka import KafkaSource
from headrace.io.messages import Decoding
from headrace.io.socket import Received
from headrace.watermarks import Activity, LaneFrontiers, SourceFrontier, advance_together
from headrace.windows import BEGINNING, FOREVER


def source(watermark: int | None, *, idle: bool = False, ended: bool = False) -> SourceFrontier:
    frontier = SourceFrontier({} if watermark is None else {"a": watermark})
    frontier.take({"live": ["a"], "idle": ["a"] if idle else [], "ended": ended})
    return frontier


def test_a_source_promises_the_least_of_its_splits():
    frontier = SourceFrontier()
    frontier.take({"split": "a", "watermark": 10})
    assert frontier.advance() == BEGINNING  # it is not known yet which splits there are
    frontier.take({"live": ["a", "b"], "idle": [], "ended": False})
    assert frontier.advance() == BEGINNING
    frontier.take({"split": "b", "watermark": 4})
    assert frontier.advance() == 4
    frontier.take({"live": ["a", "b"], "idle": ["b"], "ended": False})
    assert frontier.advance() == 10
    frontier.take({"live": ["a", "b"], "idle": [], "ended": False})
    assert frontier.advance() == 10  # never back
    assert frontier.floor("b", was_idle=True) == 10
    assert frontier.floor("a", was_idle=False) == 10
    assert frontier.floor("c", was_idle=False) == 10  # a split that is new


def test_a_silent_source_keeps_up_and_never_runs_ahead():
    silent, live, done = source(5, idle=True), source(30), source(70, ended=True)
    advance_together([silent, live, done])
    assert (silent.promised, live.promised, done.promised) == (30, 30, FOREVER)
    alone = source(5, idle=True)
    advance_together([alone, source(70, ended=True)])
    assert alone.promised == 5  # what has ended is no one to keep up with


def test_an_operator_waits_for_all_shards_of_what_feeds_it():
    frontier = LaneFrontiers(2)
    frontier.take({"from": "o1", "shard": 0, "watermark": 9})
    assert frontier.watermark({"o1"}) == BEGINNING
    frontier.take({"from": "o1", "shard": 1, "watermark": 7})
    assert frontier.watermark({"o1"}) == 7
    again = LaneFrontiers.of(2, frontier.saved())
    again.take(
        {"from": "s0", "split": "a", "watermark": 3, "live": ["a"], "idle": [], "ended": False}
    )
    again.advance({"s0"})
    assert again.watermark({"o1", "s0"}) == 3


def test_a_split_that_wakes_keeps_to_what_was_promised_without_it():
    frontier = SourceFrontier({"a": 10, "b": 4}, live=["a", "b"], idle=["b"])
    assert frontier.advance() == 10
    frontier.wake("b")
    assert frontier.splits == {"a": 10, "b": 10}
    assert not frontier.is_idle


def test_silence_is_idleness_only_where_something_could_have_been_read():
    activity = Activity(5_000_000)
    activity.sent("a", 0.0)
    assert not activity.is_quiet("a", 5.0)
    assert activity.is_quiet("a", 6.0)
    assert activity.silence(["a"], 6.0) == 6_000_000
    activity.pause(6.0)
    assert not activity.is_quiet("a", 8.0)
    activity = Activity(None)
    activity.sent("a", 0.0)
    assert not activity.is_quiet("a", 1e9)


def test_a_log_of_lines_survives_a_kill_in_its_cleaning(tmp_path: Path):
    text = b"".join(b"line %d\n" % i for i in range(20))
    log = logged(tmp_path, text)
    rest = logged(tmp_path / "new", text[14:])
    assert rest.file.name.endswith("bytes-00000000000000000000")
    Path(rest.file.name).rename(tmp_path / "bytes-00000000000000000014")  # and the old one not gone
    (tmp_path / "new").rmdir()
    log = Received("localhost", 1)
    log.keep_in(tmp_path)
    assert log.data(0, len(text)) == text
    assert [p.name for p in tmp_path.iterdir()] == ["bytes-00000000000000000000"]
    assert log.some_lines(0, len(text), 2) == 14
    assert log.whole_lines(14) == len(text)


def logged(folder: Path, text: bytes) -> Received:
    """A log in a folder of what a server sent, in two pieces."""
    log = Received("localhost", 1)
    log.keep_in(folder)
    log._take(text[:30])
    log._take(text[30:])
    return log


def test_a_damaged_log_of_lines_is_refused(tmp_path: Path):
    name = "bytes-00000000000000000000"
    text = b"".join(b"line %d\n" % i for i in range(20))
    logged(tmp_path, text + b"half a li")
    whole = (tmp_path / name).read_bytes()
    for at in range(len(whole)):
        (tmp_path / name).write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(EngineError, match=f"{name} is damaged at byte"):
            Received("localhost", 1).keep_in(tmp_path)
    for at in range(len(whole)):
        (tmp_path / name).write_bytes(whole[:at])
        log = Received("localhost", 1)
        log.keep_in(tmp_path)
        log.refuse_shorter(0)
        with pytest.raises(EngineError, match=r"bytes-0+.* is gone, or the file before it is cut"):
            log.refuse_shorter(len(text))
    (tmp_path / name).write_bytes(whole)
    log = Received("localhost", 1)
    log.keep_in(tmp_path)
    log.refuse_shorter(len(text))
    assert log.data(0, len(text)) == text


def test_a_topic_that_was_made_anew_is_told(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("confluent_kafka")
    topic = KafkaSource("t", "localhost:1", Decoding.of("read_kafka", "text", None, "raise"))
    monkeypatch.setattr(KafkaSource, "_partitions", lambda self: [0])
    monkeypatch.setattr(KafkaSource, "_edges", lambda self, partition: (0, 50))
    assert topic.latest({"0": 20}) == {"0": 50}
    with pytest.raises(Exception, match="ends at 50, but 1000 have been read"):
        topic.latest({"0": 1000})
