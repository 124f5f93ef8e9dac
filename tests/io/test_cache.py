"""Where what can be made again is kept."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.cache import cache_folder, cached_script, mark_used, own_name, prune, sweep
from headrace.errors import EngineError


def test_a_cache_is_the_users_alone(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        assert cache_folder("x") == tmp_path / "cache" / "headrace" / "x"
    finally:
        os.umask(before)
    assert (tmp_path / "cache" / "headrace").stat().st_mode & 0o777 == 0o700


def test_one_that_others_can_write_to_is_passed_over(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "headrace").mkdir()
    (tmp_path / "headrace").chmod(0o777)
    assert cache_folder("x").is_relative_to(tmp_path / "temporary")
    cache_folder("x").parent.chmod(0o777)
    with pytest.raises(EngineError, match="no folder for headrace's cache"):
        cache_folder("x")


def test_without_a_home_nothing_is_put_where_one_stands(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "~/cache")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    assert cache_folder("x").is_relative_to(tmp_path / "temporary")
    assert [p.name for p in tmp_path.iterdir()] == ["temporary"]


def test_a_script_is_made_again_when_it_is_not_as_it_was(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = cached_script("kind", "name", "#!/bin/sh\n")
    assert os.access(program, os.X_OK)
    program.write_text("other")
    assert cached_script("kind", "name", "#!/bin/sh\n") == program
    assert program.read_text() == "#!/bin/sh\n"
    assert cached_script("kind", "name", "#!/bin/bash\n") != program


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_can_write_to_is_made_anew(
    tmp_path: Path, monkeypatch: Any, mode: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_folder("x/y")
    (folder / "planted").touch()
    for changed in (folder, folder.parent):
        changed.chmod(mode)
        assert cache_folder("x/y") == folder
        assert list(folder.iterdir()) == []
        assert changed.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in tmp_path.rglob("*")] == ["headrace", "x", "y"]


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    cache_folder("x")
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with pytest.raises(EngineError, match="no folder for headrace's cache"):
        cache_folder("x")


def test_whatever_the_umask_nobody_else_may_write(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = os.umask(0)
    try:
        program = cached_script("kind", "name", "#!/bin/sh\n")
    finally:
        os.umask(before)
    for path in (program, program.parent, program.parent.parent):
        assert not path.stat().st_mode & 0o022


def test_a_script_that_others_could_change_is_made_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = cached_script("kind", "name", "#!/bin/sh\n")
    program.chmod(0o777)
    assert cached_script("kind", "name", "#!/bin/sh\n") == program
    assert program.stat().st_mode & 0o777 == 0o755


def age(path: Path, days: float) -> None:
    then = time.time() - days * 24 * 3600
    os.utime(path, (then, then))


def test_what_nobody_used_for_a_month_is_removed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    old, young, used, again = (cache_folder(f"native-{n}/files") for n in range(4))
    for folder in (old, used, again):
        (folder / "file").touch()
        age(folder.parent, 31)
    age(young.parent, 29)
    (tmp_path / "headrace" / "mine").mkdir()  # put there by a person
    age(tmp_path / "headrace" / "mine", 300)
    mark_used(used / "file")
    cache_folder("native-3")
    sweep()
    assert not old.parent.exists()
    assert young.is_dir()
    assert (used / "file").exists()
    assert (again / "file").exists()
    names = sorted(p.name for p in (tmp_path / "headrace").iterdir())
    assert names == ["mine", "native-1", "native-2", "native-3"]


def test_without_a_cache_there_is_nothing_to_prune(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nor here"))
    prune()
    assert list(tmp_path.iterdir()) == []


def files_of(folder: Path) -> list[str]:
    """Files with names and times as those that a cache would remove."""
    for name in ("input-mine", "spark-mine"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").touch()
        age(folder / name, 300)
    return everything(folder)


def everything(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_a_link_in_place_of_the_cache_is_not_followed(tmp_path: Path, monkeypatch: Any) -> None:
    """Another user can put a link where the cache would be among the temporary files."""
    temporary, home = tmp_path / "temporary", tmp_path / "home"
    before = files_of(home)
    temporary.mkdir()
    (temporary / f"headrace-{os.getuid()}").symlink_to(home)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()  # there can be no cache in it
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    sweep()
    assert everything(home) == before
    with pytest.raises(EngineError, match="no folder for headrace's cache"):
        cache_folder("x")
    assert everything(home) == before


def name_of_a_dead_process(kind: str) -> str:
    ended = subprocess.Popen(["true"])
    ended.wait()
    return own_name(kind).replace(f"-{os.getpid()}-", f"-{ended.pid}-") + "x"


def test_leftovers_of_a_dead_process_are_removed_and_links_not_followed(
    tmp_path: Path, monkeypatch: Any
) -> None:
    temporary, home = tmp_path / "temporary", tmp_path / "home"
    before = files_of(home)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = temporary / name_of_a_dead_process("folder")
    folder.mkdir(parents=True)
    (folder / "within").symlink_to(home)
    (temporary / name_of_a_dead_process("link")).symlink_to(home)
    (temporary / name_of_a_dead_process("file")).touch()
    others = ["headrace-1-elsewhere-job-x", f"{own_name('job')}x", "spark-1", "headrace-x"]
    for name in others:
        (temporary / name).mkdir()
    sweep()
    assert sorted(p.name for p in temporary.iterdir()) == sorted(others)
    assert everything(home) == before


def test_leftovers_of_another_user_stay(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / name_of_a_dead_process("folder")).mkdir()
    monkeypatch.setattr("os.getuid", lambda: 12345)
    before = everything(tmp_path)
    sweep()
    assert everything(tmp_path) == before


def test_a_folder_that_a_running_process_uses_stays(tmp_path: Path, monkeypatch: Any) -> None:
    """Java may still run when the process that started it is gone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / name_of_a_dead_process("spark")
    folder.mkdir()
    with subprocess.Popen(["sh", "-c", "read line; exit", str(folder)], stdin=-1) as user:
        sweep()
        assert folder.is_dir()
        user.communicate()
    sweep()
    assert not folder.exists()
