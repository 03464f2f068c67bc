# SPDX-License-Identifier: Apache-2.0
"""Headers of the frames and packets of compressed audio, of which some formats have no other."""

from dataclasses import dataclass
from functools import lru_cache

_MPEG_1 = 3
_LAYERS = {1: 3, 2: 2}
"""Bits of the layer in an MPEG header → the layer; the rare layer I is left out."""
_LOW_RATE_KBITS = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0)
_MPEG_1_KBITS = {
    2: (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 0),
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
}
"""Layer → kbit per second by their index; 0: frames of an unknown size. MPEG 2 has lower ones."""
_RATES = (44_100, 48_000, 32_000)
_DIVISORS = {_MPEG_1: 1, 2: 2, 0: 4}
"""Version in an MPEG header → by what the rate is divided: MPEG 1, 2 and 2.5."""

_ADTS_HEADER = 7  # bytes
_ADTS_RATES = 13  # sample rates that have an index
_ADTS_BYTES_PER_CHANNEL = 768  # the longest frame of the standard

_AC3_KBITS = (
    *(32, 40, 48, 56, 64, 80, 96, 112, 128, 160),
    *(192, 224, 256, 320, 384, 448, 512, 576, 640),
)
_AC3_RATES = (48_000, 44_100, 32_000)
_AC3_SAMPLES = 1536  # of a frame
_LAST_AC3_VERSION = 10
_LAST_EAC3_VERSION = 16

_LOAS_HEADER = 3  # bytes
_TS_PACKET = 188
_M2TS_TIME = 4  # bytes before each packet


@dataclass(frozen=True)
class MpegHeader:
    """The header of a frame of MPEG audio."""

    layer: int
    frame_size: int
    """Bytes, with the header."""
    num_samples: int
    """Per channel."""


@lru_cache(maxsize=4096)
def parse_mpeg_header(header: bytes) -> MpegHeader | None:
    """The header of layer II or III with these three first bytes; None: it is none of them."""
    first, second, third = header
    version = second >> 3 & 3
    layer = _LAYERS.get(second >> 1 & 3)
    rate_index = third >> 2 & 3
    has_sync = first == 0xFF and second >= 0xE0
    if not has_sync or version not in _DIVISORS or layer is None or rate_index == len(_RATES):
        return None
    kbits_by_index = _MPEG_1_KBITS[layer] if version == _MPEG_1 else _LOW_RATE_KBITS
    kbits = kbits_by_index[third >> 4]
    if not kbits:
        return None
    num_samples = 576 if layer == 3 and version != _MPEG_1 else 1152
    rate = _RATES[rate_index] // _DIVISORS[version]
    padding = third >> 1 & 1
    return MpegHeader(layer, num_samples // 8 * 1000 * kbits // rate + padding, num_samples)


# ---- Header → bytes of the frame; 0: it is none of this format


def mp2_frame_size(header: bytes) -> int:
    """Bytes of a frame of layer II, of which three bytes are given; 0: it is none."""
    mpeg = parse_mpeg_header(header)
    return mpeg.frame_size if mpeg is not None and mpeg.layer == 2 else 0


def mp3_frame_size(header: bytes) -> int:
    """Bytes of a frame of layer III, of which three bytes are given; 0: it is none."""
    mpeg = parse_mpeg_header(header)
    return mpeg.frame_size if mpeg is not None and mpeg.layer == 3 else 0


def adts_frame_size(header: bytes) -> int:
    """Bytes of a frame of AAC in ADTS, of which six bytes are given; 0: it is none."""
    has_sync = header[0] == 0xFF and header[1] & 0xF6 == 0xF0
    rate_index = header[2] >> 2 & 15
    channels = (header[2] & 1) << 2 | header[3] >> 6
    size = (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    is_possible_size = _ADTS_HEADER < size <= _ADTS_BYTES_PER_CHANNEL * channels
    return size if has_sync and rate_index < _ADTS_RATES and is_possible_size else 0


def loas_frame_size(header: bytes) -> int:
    """Bytes of a frame of AAC in LATM with its layer of sync, LOAS, of which three are given."""
    has_sync = header[0] == 0x56 and header[1] & 0xE0 == 0xE0
    size = (header[1] & 0x1F) << 8 | header[2]
    return _LOAS_HEADER + size if has_sync and size else 0


def ac3_frame_size(header: bytes) -> int:
    """Bytes of a frame of AC-3 or E-AC-3, of which six bytes are given; 0: it is none."""
    if header[:2] != b"\x0b\x77":
        return 0
    version = header[5] >> 3
    if _LAST_AC3_VERSION < version <= _LAST_EAC3_VERSION:
        return 2 * (((header[2] & 7) << 8 | header[3]) + 1)
    rate_index = header[4] >> 6
    size_index = header[4] & 63
    is_known = rate_index < len(_AC3_RATES) and size_index < 2 * len(_AC3_KBITS)
    if version > _LAST_EAC3_VERSION or not is_known:
        return 0
    rate = _AC3_RATES[rate_index]
    num_words = _AC3_KBITS[size_index // 2] * 1000 * _AC3_SAMPLES // (16 * rate)
    # At 44,100 Hz frames of two sizes alternate.
    has_padding = rate == 44_100 and size_index % 2 == 1
    return 2 * (num_words + has_padding)


def ts_packet_size(header: bytes) -> int:
    """188 for the first four bytes of a packet of an MPEG transport stream; 0: it is none.

    A packet has a payload, or an adaptation field, or both. It is not scrambled or damaged.
    """
    is_damaged = header[1] & 0x80
    is_scrambled = header[3] & 0xC0
    has_content = header[3] & 0x30
    is_packet = header[0] == 0x47 and has_content and not is_damaged and not is_scrambled
    return _TS_PACKET if is_packet else 0


def m2ts_packet_size(header: bytes) -> int:
    """192 for the first eight bytes of a packet with a time before it (M2TS); 0: it is none."""
    is_packet = ts_packet_size(header[_M2TS_TIME:]) > 0
    return _M2TS_TIME + _TS_PACKET if is_packet else 0
