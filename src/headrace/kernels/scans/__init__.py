"""Scans: the states of keys, and what records do with them in their order."""

from __future__ import annotations

from typing import Any

from headrace.kernels.scans.compiled import compiled_step
from headrace.kernels.scans.counted import count_steps
from headrace.kernels.scans.once import OnceSteps
from headrace.kernels.scans.rank import RankSteps
from headrace.kernels.scans.running import RunningSteps
from headrace.kernels.scans.shift import LagSteps, LeadSteps
from headrace.kernels.scans.steps import Records, Steps
from headrace.kernels.scans.user import UserSteps
from headrace.plan.explain import LOCK
from headrace.plan.scans import (
    CountStep,
    OnceStep,
    RankStep,
    RunningStep,
    Scan,
    ShiftStep,
    UserStep,
)

__all__ = ["Records", "Steps", "not_compiled", "scan_place", "steps_of"]


def scan_place(node: Scan) -> str:
    """How a scan's step runs: compiled, or as Python and why; nothing where it is ours."""
    if not node.python:
        return ""
    if isinstance(node.what, CountStep):
        return LOCK
    why = not_compiled(node)
    return "compiled by Numba" if why is None else f"{LOCK}: {why}"


def not_compiled(node: Scan) -> str | None:
    """Why a scan runs a person's function in Python; None if it does not."""
    if isinstance(node.what, CountStep):
        return "an aggregate of a person's own" if node.python else None
    if not isinstance(node.what, UserStep):
        return None
    found = compiled_step(node.what, node.input.schema)
    return found if isinstance(found, str) else None


def steps_of(node: Scan, schema: Any, zone: str) -> Steps:
    """Fresh states for a scan of records with these columns."""
    what = node.what
    if isinstance(what, UserStep):
        return UserSteps(node, what, schema)
    if isinstance(what, RunningStep):
        return RunningSteps(node, what, schema, zone)
    if isinstance(what, ShiftStep):
        return (LeadSteps if what.ahead else LagSteps)(node, what, schema)
    if isinstance(what, RankStep):
        return RankSteps(node, what, schema)
    if isinstance(what, CountStep):
        return count_steps(node, what, schema, zone)
    assert isinstance(what, OnceStep)
    return OnceSteps(node, what, schema)
