# SPDX-License-Identifier: Apache-2.0
"""Headers of the frames and packets of compressed audio.

Some formats are only a sequence of such frames, without a header of the file. The comments name the
fields of a header as the standards do, with their bits from the highest one on.
"""

from dataclasses import dataclass
from functools import lru_cache

_MPEG_1 = 3
_MPEG_2 = 2
_MPEG_2_5 = 0
"""Versions as the two bits of an MPEG header state them; 1 is reserved."""
_LAYERS = {1: 3, 2: 2}
"""Bits of the layer in an MPEG header → the layer; the rare layer I is left out."""
_LOW_RATE_KBITS = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0)
"""kbit per second of MPEG 2 and 2.5 by the index in the header; 0: frames of an unknown size."""
_MPEG_1_KBITS = {
    2: (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 0),
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
}
"""Layer → kbit per second of MPEG 1 by the index in the header; 0: frames of an unknown size."""
_MPEG_1_RATES = (44_100, 48_000, 32_000)
"""Samples per second of MPEG 1 by the index in the header; index 3 is reserved."""
_RATE_DIVISORS = {_MPEG_1: 1, _MPEG_2: 2, _MPEG_2_5: 4}
"""Version → by what the rate of MPEG 1 is divided."""

_ADTS_HEADER_SIZE = 7  # bytes
_NUM_ADTS_RATES = 13  # sample rates that have an index
_MAX_ADTS_CHANNEL_SIZE = 768  # bytes per channel in the longest frame of the standard

_AC3_SYNC = b"\x0b\x77"
_AC3_KBITS = (
    32, 40, 48, 56, 64, 80, 96, 112, 128, 160,
    192, 224, 256, 320, 384, 448, 512, 576, 640,
)  # fmt: skip
"""kbit per second by half of the index of the size in the header."""
_AC3_RATES = (48_000, 44_100, 32_000)
_AC3_SAMPLES = 1536  # per channel of a frame
_LAST_AC3_VERSION = 10
_LAST_EAC3_VERSION = 16

_LOAS_HEADER_SIZE = 3  # bytes
_TS_PACKET_SIZE = 188  # bytes
_M2TS_TIME_SIZE = 4  # bytes before each packet


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
    """The header of a frame of layer II or III, of which the first three bytes are given.

    None: the bytes begin no such frame, or one whose header does not state its size.
    """
    first, second, third = header
    has_sync = first == 0xFF and second >= 0xE0  # eleven bits of 1
    version = second >> 3 & 3  # ID, 2 bits
    layer = _LAYERS.get(second >> 1 & 3)  # layer, 2 bits
    kbits_index = third >> 4  # bitrate_index, 4 bits
    rate_index = third >> 2 & 3  # sampling_frequency, 2 bits
    padding = third >> 1 & 1  # padding_bit: bytes
    if not has_sync or version not in _RATE_DIVISORS or layer is None:
        return None
    is_reserved_rate = rate_index == len(_MPEG_1_RATES)
    if is_reserved_rate:
        return None
    kbits = _MPEG_1_KBITS[layer][kbits_index]
    if version != _MPEG_1:
        kbits = _LOW_RATE_KBITS[kbits_index]
    if not kbits:
        return None
    has_half_frames = layer == 3 and version != _MPEG_1
    num_samples = 576 if has_half_frames else 1152
    rate = _MPEG_1_RATES[rate_index] // _RATE_DIVISORS[version]
    bits_per_second = 1000 * kbits
    size = num_samples // 8 * bits_per_second // rate + padding  # 8 bits per byte
    return MpegHeader(layer=layer, frame_size=size, num_samples=num_samples)


# ---- First bytes of a header → bytes of its frame; 0: they begin no frame of this format


def mp2_frame_size(header: bytes) -> int:
    """Bytes of a frame of MPEG layer II, by its first three bytes; 0: they begin none."""
    mpeg = parse_mpeg_header(header)
    return mpeg.frame_size if mpeg is not None and mpeg.layer == 2 else 0


def mp3_frame_size(header: bytes) -> int:
    """Bytes of a frame of MPEG layer III, by its first three bytes; 0: they begin none."""
    mpeg = parse_mpeg_header(header)
    return mpeg.frame_size if mpeg is not None and mpeg.layer == 3 else 0


def adts_frame_size(header: bytes) -> int:
    """Bytes of a frame of AAC in ADTS, by its first six bytes; 0: they begin none."""
    has_sync = header[0] == 0xFF and header[1] & 0xF6 == 0xF0  # 12 bits of 1, layer 0
    rate_index = header[2] >> 2 & 15  # sampling_frequency_index, 4 bits
    num_channels = (header[2] & 1) << 2 | header[3] >> 6  # channel_configuration, 3 bits
    size = (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5  # length of the frame, 13 bits
    is_known_rate = rate_index < _NUM_ADTS_RATES
    is_possible_size = _ADTS_HEADER_SIZE < size <= _MAX_ADTS_CHANNEL_SIZE * num_channels
    return size if has_sync and is_known_rate and is_possible_size else 0


def loas_frame_size(header: bytes) -> int:
    """Bytes of a frame of AAC in LATM and LOAS, by its first three bytes; 0: they begin none.

    LOAS is the layer that gives LATM a mark of synchronization and a length.
    """
    has_sync = header[0] == 0x56 and header[1] & 0xE0 == 0xE0  # syncword, 11 bits: 0x2B7
    content_size = (header[1] & 0x1F) << 8 | header[2]  # audioMuxLengthBytes, 13 bits
    return _LOAS_HEADER_SIZE + content_size if has_sync and content_size else 0


def ac3_frame_size(header: bytes) -> int:
    """Bytes of a frame of AC-3 or E-AC-3, by its first six bytes; 0: they begin none."""
    if header[:2] != _AC3_SYNC:
        return 0
    version = header[5] >> 3  # bsid, 5 bits
    if version > _LAST_EAC3_VERSION:
        return 0
    if version > _LAST_AC3_VERSION:
        return _eac3_frame_size(header)
    rate_index = header[4] >> 6  # fscod, 2 bits
    size_index = header[4] & 63  # frmsizecod, 6 bits
    if rate_index >= len(_AC3_RATES) or size_index >= 2 * len(_AC3_KBITS):
        return 0
    rate = _AC3_RATES[rate_index]
    kbits = _AC3_KBITS[size_index // 2]
    num_words = kbits * 1000 * _AC3_SAMPLES // (16 * rate)  # of 16 bits
    # At 44,100 Hz frames of two sizes alternate; an odd index is the longer one.
    if rate == 44_100 and size_index % 2 == 1:
        num_words += 1
    return 2 * num_words


def _eac3_frame_size(header: bytes) -> int:
    """Bytes of a frame of E-AC-3 with this header."""
    num_words = ((header[2] & 7) << 8 | header[3]) + 1  # frmsiz, 11 bits, and 1; of 16 bits
    return 2 * num_words


def ts_packet_size(header: bytes) -> int:
    """188 for the first four bytes of a packet of an MPEG transport stream; 0: they begin none.

    A packet has a payload, or an adaptation field, or both. A packet that is scrambled or damaged
    counts as none.
    """
    has_sync = header[0] == 0x47
    is_damaged = header[1] & 0x80  # transport_error_indicator
    is_scrambled = header[3] & 0xC0  # transport_scrambling_control
    has_content = header[3] & 0x30  # adaptation_field_control
    is_readable = has_content and not is_damaged and not is_scrambled
    return _TS_PACKET_SIZE if has_sync and is_readable else 0


def m2ts_packet_size(header: bytes) -> int:
    """192 for the first eight bytes of an M2TS packet, which begins with a time; 0: none begins."""
    is_packet = ts_packet_size(header[_M2TS_TIME_SIZE:]) > 0
    return _M2TS_TIME_SIZE + _TS_PACKET_SIZE if is_packet else 0
