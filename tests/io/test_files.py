"""Files cut into splits: every line once, in order, wherever the cuts fall."""

from __future__ import annotations

import gzip

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.io import files
from headrace.io.text import TextSource

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=30)


def read(source, parallelism):
    splits = source.splits(parallelism)
    return [v for s in splits for b in s.read(["line"]) for v in b.column(0).to_pylist()]


@given(
    lines=st.lists(LINE, max_size=40),
    ending=st.sampled_from(["\n", "\r\n"]),
    final=st.booleans(),
    block=st.integers(1, 64),
    size=st.integers(1, 64),
)
def test_every_line_comes_once_and_in_order(tmp_path_factory, lines, ending, final, block, size):
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    text = ending.join(lines) + (ending if final and lines else "")
    path.write_bytes(text.encode())
    want = text.replace("\r\n", "\n").split("\n")
    want = want[:-1] if want[-1] == "" else want
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", block)
        patch.setattr(files, "_MIN_SPLIT", size)
        patch.setattr(files, "_MAX_SPLIT", size)
        source = TextSource.open(str(path))
        assert read(source, 4) == want
        if path.stat().st_size > 2 * size:
            assert len(source.splits(4)) > 1


@pytest.mark.parametrize("kind", ["plain", "gz", "zst"])
def test_compressed_files_are_read(engine, tmp_path, kind):
    text = "".join(f"line {n} é\n" for n in range(20_000))
    path = tmp_path / {"plain": "a.txt", "gz": "a.txt.gz", "zst": "a.txt.zst"}[kind]
    data = text.encode()
    if kind == "gz":
        data = gzip.compress(data)
    elif kind == "zst":
        data = zstandard.compress(data)
    path.write_bytes(data)
    assert hr.read_text(path).collect(on=engine)["line"].to_pylist() == text.splitlines()


def test_paths_globs_folders_and_lists(engine, tmp_path):
    for name, line in (("b.txt", "2"), ("a.txt", "1"), ("c.log", "3"), ("_hidden.txt", "9")):
        (tmp_path / name).write_text(line + "\n")

    def lines(path):
        return hr.read_text(path).collect(on=engine)["line"].to_pylist()

    assert lines(tmp_path / "[ab].txt") == ["1", "2"]
    assert lines(tmp_path) == ["1", "2", "3"]
    assert lines([tmp_path / "c.log", tmp_path / "a.txt"]) == ["3", "1"]
    assert lines(f"file://{tmp_path}/b.txt") == ["2"]


def test_other_encodings_and_bytes_that_are_no_text(engine, tmp_path):
    (tmp_path / "latin.txt").write_bytes("café\n".encode("latin-1"))
    read = hr.read_text(tmp_path / "latin.txt", encoding="latin-1")
    assert read.collect(on=engine)["line"].to_pylist() == ["café"]
    assert hr.read_text(tmp_path / "latin.txt").collect(on=engine)["line"].to_pylist() == ["caf�"]


def test_an_empty_file_has_no_lines(engine, tmp_path):
    (tmp_path / "a.txt").touch()
    assert hr.read_text(tmp_path / "a.txt").count(on=engine) == 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda p: hr.read_text(p / "bok.txt"),
            "there is no file .*bok.txt.*did you mean 'book.txt'",
        ),
        (lambda p: hr.read_text(p / "*.csv"), r"no file matches .*\*\.csv"),
        (lambda p: hr.read_text(p / "empty"), "the folder .* has no files"),
        (lambda p: hr.read_text(p / "book.txt", encoding="utf-9"), "there is no encoding 'utf-9'"),
        (lambda p: hr.read_text([]), "no path was given"),
        (lambda p: hr.read_parquet(p / "book.txt"), "is not Parquet"),
        (lambda p: hr.read("xml", p), "there is no source 'xml'"),
    ],
)
def test_mistakes_are_refused_when_built(tmp_path, build, message):
    (tmp_path / "book.txt").write_text("a\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(hr.PlanError, match=message):
        build(tmp_path)
