"""Passwords and the like: they travel with a pipeline, and are shown nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

HIDDEN = "***"
_TELLING = re.compile(
    r"pass|secret|token|jaas|credential|api[._-]?key|private|\bkey\b|\.key\b", re.I
)


class Secret:
    """A text that hides itself: ``hr.Secret(os.environ["DSN"])``.

    It may be given wherever a URL or a setting of a client is; what is given as plain text and
    may hold a password is made one.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    @staticmethod
    def of(text: str | Secret) -> Secret:
        return text if isinstance(text, Secret) else Secret(text)

    def reveal(self) -> str:
        """The text itself, for the client that needs it."""
        return self._text

    def parts(self) -> list[str]:
        """What must not be seen of it: the password of a URL or a DSN, or all of it."""
        text = self._text
        found = [text]
        if "://" in text:
            after = text.partition("://")[2]
            user, at, _ = after.rpartition("@")
            password = user.partition(":")[2] if at else ""
            query = re.findall(r"[?&]\w*pass\w*=([^&]+)", text, re.I)
            found += [p for p in (password, unquote(password), *query, *map(unquote, query)) if p]
        found += re.findall(r"\bpassword\s*=\s*'?([^'\s]+)", text, re.I)
        return sorted(set(found), key=len, reverse=True)

    def __repr__(self) -> str:
        return f"Secret('{HIDDEN}')"

    def __str__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


def hiding(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a client with those that sound like a password as secrets."""
    return {
        name: Secret(value) if isinstance(value, str) and _TELLING.search(name) else value
        for name, value in settings.items()
    }


def revealed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as the client takes them."""
    return {n: v.reveal() if isinstance(v, Secret) else v for n, v in settings.items()}


def without(text: object, secrets: Iterable[Any]) -> str:
    """A text, such as another library's error, without what must not be seen."""
    shown = str(text)
    for secret in secrets:
        for part in secret.parts() if isinstance(secret, Secret) else ():
            if len(part) > 2:
                shown = shown.replace(part, HIDDEN)
    return shown


def server_of(url: Secret, port: int) -> str:
    """Which server a URL names, and what on it, without who asks."""
    try:
        parts = urlsplit(url.reveal())
        return f"{parts.hostname or 'localhost'}:{parts.port or port}{parts.path}"
    except ValueError:
        return "a server"
