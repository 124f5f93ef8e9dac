"""Where what can be made again is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.cache import cache_folder, cached_script
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
