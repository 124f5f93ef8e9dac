"""The messages of sinks' writers as a file of a checkpoint.

A job that is killed between a checkpoint and the commit of its outputs commits them when it goes
on, so the checkpoint has what the writers said. The file has a line of JSON with the kind and the
length of each message, then their bytes. What the writers of Headrace's own sinks say is text,
numbers and Arrow streams; only other objects, of sinks that users wrote, are pickled.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Message:
    """A writer's message, encoded: a pickle is only loaded when the message is committed."""

    kind: str
    """``json``, ``bytes`` or ``pickle``."""
    data: bytes

    @staticmethod
    def of(value: Any) -> Message | None:
        """Encode a message; None, for nothing was written, stays None."""
        if value is None:
            return None
        if type(value) is bytes:
            return Message("bytes", value)
        if type(value) in (str, int, float, bool):
            return Message("json", json.dumps(value).encode())
        return Message("pickle", pickle.dumps(value))

    def value(self) -> Any:
        """Decode it."""
        if self.kind == "bytes":
            return self.data
        return json.loads(self.data) if self.kind == "json" else pickle.loads(self.data)


def as_pieces(messages: Sequence[Message | None]) -> list[bytes]:
    """The contents of a file, in pieces."""
    index = [None if m is None else [m.kind, len(m.data)] for m in messages]
    head = json.dumps(index).encode() + b"\n"
    return [head, *(message.data for message in messages if message is not None)]


def from_bytes(data: bytes) -> list[Message | None]:
    """The messages of a file."""
    at = data.index(b"\n") + 1
    messages: list[Message | None] = []
    for entry in json.loads(data[:at]):
        if entry is None:
            messages.append(None)
            continue
        kind, length = entry
        messages.append(Message(kind, data[at : at + length]))
        at += length
    return messages


def has_pickles(messages: Sequence[Message | None]) -> bool:
    """Whether a file of these messages holds pickles."""
    return any(message is not None and message.kind == "pickle" for message in messages)
