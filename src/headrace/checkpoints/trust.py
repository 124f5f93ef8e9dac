"""Whether somebody else may have written a checkpoint.

State of Python functions is pickled, and to load a pickle is to run it. So nothing of a checkpoint
is read before all of its files and folders were looked at.
"""

from __future__ import annotations

import os
import stat

from headrace.errors import PlanError
from headrace.io.files import LOCAL, filesystem

_GROUP = stat.S_IWGRP, stat.S_IXGRP
_OTHERS = stat.S_IWOTH, stat.S_IXOTH


def refuse_foreign(folder: str) -> None:
    """Refuse a checkpoint that another user may have written, in whole or in part.

    Every file and folder must belong to the user or to root, must not be a link, and must not be
    writable by the group or by others. The latter does not count below a folder of the checkpoint
    that keeps these out: Spark, and sources that users wrote, make files as the user's umask says.
    The checkpoint's own folder may be a link to elsewhere. Folders of object stores have no owners
    here; who may write there is for their access rules to say.
    """
    system, root = filesystem(folder)
    if system is not LOCAL or not os.path.lexists(root):
        return
    if os.path.islink(root):
        if os.lstat(root).st_uid not in (os.geteuid(), 0):
            raise _refusal(folder, root, "belongs to another user")
        root = os.path.realpath(root)
        if not os.path.exists(root):
            return
    anyone = (_GROUP, _OTHERS)
    _look(folder, root, os.lstat(root), anyone, is_deep=False)
    own = f"{root}/headrace"
    if os.path.lexists(own):  # anything else is not ours to look at
        _look(folder, own, os.lstat(own), anyone, is_deep=False)
        _look(folder, root, os.lstat(root), anyone, is_deep=True)


def _look(
    folder: str,
    path: str,
    found: os.stat_result,
    reached_by: tuple[tuple[int, int], ...],
    is_deep: bool,
) -> None:
    """Look at a file or a folder and at all in it.

    Args:
        folder: The checkpoint.
        path: The file or folder.
        found: What the file system says of it.
        reached_by: Who besides the owner can get there: the bits by which each may write and enter.
        is_deep: Whether to look into a folder.
    """
    if found.st_uid not in (os.geteuid(), 0):
        raise _refusal(folder, path, "belongs to another user")
    if stat.S_ISLNK(found.st_mode):
        raise _refusal(folder, path, "is a link, and what it leads to may be another user's")
    is_folder = stat.S_ISDIR(found.st_mode)
    if not is_folder and not stat.S_ISREG(found.st_mode):
        raise _refusal(folder, path, "is neither a file nor a folder")
    if any(found.st_mode & write for write, _ in reached_by):
        raise _refusal(folder, path, "can be written by other users")
    if is_folder and is_deep:
        inside = tuple(bits for bits in reached_by if found.st_mode & bits[1])
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    each = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # of a job that runs
                    continue
                _look(folder, entry.path, each, inside, is_deep)


def _refusal(folder: str, path: str, why: str) -> PlanError:
    return PlanError(
        f"the checkpoint {folder!r} is not read: {path} {why}, and state of Python functions is "
        f"pickled, so to load it is to run it; if you trust it, own it (chown -R) and keep others "
        f"out (chmod 700 {folder}), or give another checkpoint"
    )
