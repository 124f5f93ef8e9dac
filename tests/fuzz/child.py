"""Rounds of a check in a process of their own, so that a crash is a failure and not the end."""

from __future__ import annotations

import faulthandler
import multiprocessing
import random
import resource
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

Check = Callable[[random.Random, str], None]
HANGS = 60.0
"""Seconds after which a round counts as one that never ends."""
MEMORY = 4 << 30
"""Bytes of address space a round may take beyond what the process begins with."""


def rounds_in_child(seeds: Iterable[int], check: Check, folder: str) -> None:
    """Run a check once for each seed in one child; ``folder`` is where it may write."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(theirs, check, folder), daemon=True)
    child.start()
    theirs.close()
    try:
        assert ours.poll(HANGS), "the child does not start"
        assert ours.recv() == "ready"
        for seed in seeds:
            ours.send(seed)
            fault = _answer(ours, child)
            if fault:
                pytest.fail(f"{fault}\nreplay this round with HEADRACE_FUZZ_SEED={seed}")
    finally:
        child.kill()
        child.join()


def _answer(pipe: Any, child: Any) -> str | None:
    """What went wrong in a round; None if nothing did."""
    began = time.monotonic()
    if not pipe.poll(HANGS):
        return f"the round has not ended after {time.monotonic() - began:.0f} s"
    try:
        answer: str | None = pipe.recv()
    except EOFError:
        child.join()
        return f"the process died with exit code {child.exitcode} (below zero: a signal)"
    return answer


def _serve(pipe: Any, check: Check, folder: str) -> None:
    faulthandler.enable()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe.send("ready")
    while True:
        try:
            seed = pipe.recv()
        except EOFError:
            return
        try:
            check(random.Random(seed), folder)
            pipe.send(None)
        except BaseException:
            pipe.send(traceback.format_exc())
