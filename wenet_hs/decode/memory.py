# SPDX-License-Identifier: Apache-2.0
"""Too little memory for a batch, told in one line."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from wenet_hs.devices import lacks_memory
from wenet_hs.errors import ConfigError

_NAMED = 5


@contextmanager
def naming_batch(keys: Sequence[str], longest_s: float, remedy: str) -> Iterator[None]:
    """Turn too little memory into one line that names the batch.

    Args:
        longest_s: seconds of the longest one, to which the others are padded.
        remedy: what to do.

    Raises ConfigError. What the system itself kills for its memory cannot say anything.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        named = ", ".join(keys[:_NAMED]) + (" …" if len(keys) > _NAMED else "")
        raise ConfigError(
            f"out of memory with a batch of {len(keys)}, the longest of {longest_s:.1f} s ({named}); {remedy}"
        ) from error
