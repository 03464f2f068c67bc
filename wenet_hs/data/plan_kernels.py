# SPDX-License-Identifier: Apache-2.0
"""The two loops of an epoch's plan that NumPy cannot take: filling batches, and the hash that draws speeds.

For long lists they run in Numba, for others in Python, which is there at once. The values are the same.
"""

from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

MANY_LENGTHS = 200_000
"""From so many on batches are filled by Numba: compiling takes 0.3 s, Python 0.4 s a million."""
MANY_HASHES = 8_000_000
"""From so many on Numba hashes: compiling takes 5 s, then 0.35 s a million; Python takes 1 s a million."""
_DIGEST_BYTES = 8
_BLOCK_BYTES = 128
_INDEX_BYTES = 21  # the digits of an int64 with its sign, and the bracket after it

_IV = (
    *(0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1),
    *(0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179),
)
_SIGMA = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    (14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3),
    (11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4),
    (7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8),
    (9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13),
    (2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9),
    (12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11),
    (13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10),
    (6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5),
    (10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0),
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    (14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3),
)
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def fill_batches(lengths: NDArray[np.int64], max_frames: int) -> NDArray[np.int64]:
    """Where each batch ends, as many utterances in each as `max_frames` allow with padding.

    lengths: (N,) in the order in which batches are filled. Returns: (number of batches,), the last one N.
    """
    ends = np.empty(len(lengths), np.int64)
    count = (_compiled_fill() if len(lengths) >= MANY_LENGTHS else _fill)(lengths, max_frames, ends)
    return ends[:count].copy()


def _fill(lengths: NDArray[np.int64], max_frames: int, ends: NDArray[np.int64]) -> int:
    """Write the ends of the batches; how many there are. Compiled by Numba for long lists."""
    count, first, longest = 0, 0, 0
    for position in range(len(lengths)):
        longest = max(longest, lengths[position])
        if position > first and longest * (position - first + 1) > max_frames:
            ends[count] = position
            count += 1
            first, longest = position, lengths[position]
    ends[count] = len(lengths)
    return count + 1


@cache
def _compiled_fill() -> Callable[..., int]:
    from numba import njit

    compiled: Callable[..., int] = njit(_fill, nogil=True)
    return compiled


def text_hash(text: str) -> int:
    """63 random bits of a text, the same on every machine: the source of every draw about an example."""
    digest = blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest, "big") >> 1  # torch's seeds are signed


def numbered_hashes(opening: str, indices: NDArray[np.int64], *, num_all: int | None = None) -> NDArray[np.int64]:
    """`text_hash(f"{opening}{index})")` for each index, which is not negative.

    Args:
        indices: (N,)
        num_all: how many are to be hashed in all, where these are a part.

    Returns: (N,) int64.
    """
    prefix = np.frombuffer(opening.encode(), dtype=np.uint8)
    if (num_all or len(indices)) < MANY_HASHES or len(prefix) + _INDEX_BYTES > _BLOCK_BYTES:
        hashes = (text_hash(f"{opening}{index})") for index in indices.tolist())
        return np.fromiter(hashes, dtype=np.int64, count=len(indices))
    out = np.empty(len(indices), np.int64)
    _compiled_hashes()(prefix, np.ascontiguousarray(indices), np.array(_SIGMA, np.uint8), np.array(_IV, np.uint64), out)
    return out


@cache
def _compiled_hashes() -> Callable[..., None]:
    """BLAKE2b of one block (RFC 7693), unkeyed, eight bytes of digest."""
    from numba import njit

    @njit(inline="always")  # type: ignore[untyped-decorator]
    def rotate(word: Any, right: int) -> Any:
        return (word >> np.uint64(right)) | (word << np.uint64(64 - right))

    @njit  # type: ignore[untyped-decorator]
    def mix(v: Any, a: int, b: int, c: int, d: int, x: Any, y: Any) -> None:  # noqa: PLR0913 - the RFC's own seven
        v[a] += v[b] + x
        v[d] = rotate(v[d] ^ v[a], 32)
        v[c] += v[d]
        v[b] = rotate(v[b] ^ v[c], 24)
        v[a] += v[b] + y
        v[d] = rotate(v[d] ^ v[a], 16)
        v[c] += v[d]
        v[b] = rotate(v[b] ^ v[c], 63)

    @njit  # type: ignore[untyped-decorator]
    def first_word(words: Any, num_bytes: int, sigma: Any, iv: Any, v: Any) -> Any:
        v[:8], v[8:] = iv, iv
        v[0] ^= np.uint64(0x01010000 | _DIGEST_BYTES)
        first = v[0]
        v[12] ^= np.uint64(num_bytes)
        v[14] ^= np.uint64(0xFFFFFFFFFFFFFFFF)
        for step in range(12):
            s = sigma[step]
            for i in range(4):
                a, b, c, d = _COLUMNS[i]
                mix(v, a, b, c, d, words[s[2 * i]], words[s[2 * i + 1]])
            for i in range(4):
                a, b, c, d = _DIAGONALS[i]
                mix(v, a, b, c, d, words[s[8 + 2 * i]], words[s[9 + 2 * i]])
        return first ^ v[0] ^ v[8]

    return _hash_loop(first_word)


def _hash_loop(first_word: Callable[..., Any]) -> Callable[..., None]:
    from numba import njit

    @njit(nogil=True)  # type: ignore[untyped-decorator]
    def hashes(prefix: Any, indices: Any, sigma: Any, iv: Any, out: Any) -> None:
        v, digits = np.empty(16, np.uint64), np.empty(20, np.uint8)
        message = np.zeros(_BLOCK_BYTES, np.uint8)
        words = message.view(np.uint64)
        start = len(prefix)
        message[:start] = prefix
        for row in range(len(indices)):
            rest, num_digits = indices[row], 0
            while num_digits == 0 or rest > 0:
                digits[num_digits] = 48 + rest % 10
                rest //= 10
                num_digits += 1
            message[start:] = 0
            for i in range(num_digits):
                message[start + i] = digits[num_digits - 1 - i]
            message[start + num_digits] = 41  # ")"
            word = first_word(words, start + num_digits + 1, sigma, iv, v)
            turned = np.uint64(0)
            for i in range(8):
                turned = (turned << np.uint64(8)) | ((word >> np.uint64(8 * i)) & np.uint64(255))
            out[row] = np.int64(turned >> np.uint64(1))

    compiled: Callable[..., None] = hashes
    return compiled
