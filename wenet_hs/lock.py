# SPDX-License-Identifier: Apache-2.0
"""A folder that one run writes at a time."""

import errno
import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wenet_hs.errors import WenetHsError


@contextmanager
def locked(folder: Path, *, flag: str, work: str, fault: type[WenetHsError]) -> Iterator[None]:
    """Hold the folder for this process.

    A record lock (`lockf`): unlike `flock` it is not handed to the workers that load data, which outlive a kill of this
    process by seconds and would keep the folder from the run that is to go on.

    Args:
        flag: what the user named the folder by; work: what is done there; both for the message.
    Raises: `fault` if another run is writing there, or the folder cannot be made or locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise fault(f"{folder}: cannot be written ({error.strerror}); use another {flag}") from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise fault(f"{folder}: cannot be locked ({error.strerror}); use another disk") from error
            file.seek(0)
            raise fault(
                f"{folder}: another {work} writes here ({file.read().strip() or 'starting'}); wait for it or use "
                f"another {flag}"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        yield
