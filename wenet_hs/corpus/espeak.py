# SPDX-License-Identifier: Apache-2.0
"""Speech of espeak-ng as samples. The same request gives the same samples, whatever was spoken before.

The library comes from PyPI's `espeakng-loader` (an extra: espeak-ng is GPL). It keeps flutter, wave phase and noise
from one sentence to the next, and no call of its interface resets them. So each sentence gets a newly loaded library:
about half a millisecond, where a sentence takes one to five.
"""

import _ctypes
import atexit
import ctypes
import difflib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wenet_hs.errors import DataError

SAMPLE_RATE = 22050  # Hz, of every voice

_INSTALL = "`pip install 'wenet_hs[synthetic]'`"
_SYNCHRONOUS, _DONT_EXIT = 2, 0x8000  # espeak_AUDIO_OUTPUT, espeakINITIALIZE_DONT_EXIT
_RATE, _VOLUME, _PITCH, _RANGE = 1, 2, 3, 4  # espeak_PARAMETER
_CHARS_UTF8 = 1
_MAX_PATH = 120  # bytes; the library cuts the path of its data at 160 and would then look for data elsewhere
_LOCK = threading.Lock()  # one engine at a time: two threads would share the library's globals

_SynthCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


class _Voice(ctypes.Structure):
    """espeak_VOICE of speak_lib.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_void_p),  # a priority byte and a NUL-terminated code, repeated until a priority of 0
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
        ("xx1", ctypes.c_ubyte),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalogue:
    """What the installed espeak-ng can speak."""

    version: str
    languages: Mapping[str, str]
    """Language code → the engine's name of the voice, such as "es" → "roa/es"."""
    variants: tuple[str, ...]
    """Speakers that every language can have, such as "f2"; sorted."""


def speak(
    text: str, *, lang: str, variant: str | None = None, rate_wpm: int = 175, pitch: int = 50, pitch_range: int = 50
) -> NDArray[np.float32]:
    """One sentence as samples at 22,050 Hz.

    Args:
        text: plain text without markup.
        lang: an espeak-ng language code, such as "es".
        variant: the speaker, one of `catalogue().variants`; None is the voice of the language.
        rate_wpm: words per minute, 80 to 450.
        pitch: 0 to 99, 50 is the speaker's own.
        pitch_range: 0 (monotone) to 99, 50 is the speaker's own.
    Returns: (samples,) in [-1, 1]; empty when there is nothing to say.
    Raises: DataError when the language or espeak-ng is missing; ValueError for values out of range.
    """
    voice = voice_name(lang, variant)
    if not (80 <= rate_wpm <= 450 and 0 <= pitch <= 99 and 0 <= pitch_range <= 99):
        raise ValueError(f"rate {rate_wpm} (80 to 450), pitch {pitch} or range {pitch_range} (0 to 99) out of range")
    if "\0" in text:
        raise ValueError("the text contains a NUL")
    chunks: list[bytes] = []

    def collect(samples: int | None, num_samples: int, _events: int | None) -> int:
        if samples and num_samples:
            chunks.append(ctypes.string_at(samples, 2 * num_samples))
        return 0

    callback = _SynthCallback(collect)
    with _load_engine() as engine:
        engine.espeak_SetSynthCallback(callback)
        _check(engine.espeak_SetVoiceByName(voice.encode()), f"voice {voice}")
        for parameter, value in ((_RATE, rate_wpm), (_VOLUME, 100), (_PITCH, pitch), (_RANGE, pitch_range)):
            _check(engine.espeak_SetParameter(parameter, value, 0), f"parameter {parameter} = {value}")
        encoded = text.encode("utf-8")
        _check(engine.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, _CHARS_UTF8, None, None), f"text {text!r}")
        _check(engine.espeak_Synchronize(), "end of speech")
    return np.frombuffer(b"".join(chunks), dtype=np.int16).astype(np.float32) / np.float32(32768)


def voice_name(lang: str, variant: str | None = None) -> str:
    """The engine's name of a speaker of a language, such as "roa/es+f2". Raises DataError for an unknown language."""
    known = catalogue()
    if lang not in known.languages:
        similar = difflib.get_close_matches(lang, known.languages, n=5, cutoff=0.3) or sorted(known.languages)
        raise DataError(f"espeak-ng {known.version}: it has no language {lang!r}; it has {' '.join(similar)}")
    if variant is not None and variant not in known.variants:
        raise ValueError(f"espeak-ng has no variant {variant!r}; it has {' '.join(known.variants)}")
    return known.languages[lang] + (f"+{variant}" if variant else "")


@cache
def catalogue() -> Catalogue:
    """The languages and variants of the installed espeak-ng. Raises DataError when it is not installed."""
    with _load_engine() as engine:
        version = engine.espeak_Info(None).decode()
        ranked: dict[str, tuple[int, str]] = {}
        for voice in _list_voices(engine):
            address = voice.languages
            while address and (priority := ctypes.string_at(address, 1)[0]):  # the lowest priority is the best voice
                code = ctypes.string_at(address + 1)
                address += len(code) + 2
                lang = code.decode()
                ranked[lang] = min(ranked.get(lang, (256, "")), (priority, voice.identifier.decode()))
        variants = [voice.identifier.decode() for voice in _list_voices(engine, "variant")]
    return Catalogue(
        version=version,
        languages={code: identifier for code, (_, identifier) in sorted(ranked.items())},
        variants=tuple(sorted(variant.removeprefix("!v/") for variant in variants)),
    )


def _list_voices(engine: ctypes.CDLL, language: str | None = None) -> Iterator[_Voice]:
    wanted = ctypes.create_string_buffer(language.encode()) if language else None
    spec = _Voice(languages=ctypes.addressof(wanted)) if wanted else None
    voices = engine.espeak_ListVoices(ctypes.byref(spec) if spec else None)
    position = 0
    while voices[position]:
        yield voices[position].contents
        position += 1


@contextmanager
def _load_engine() -> Iterator[ctypes.CDLL]:
    """A newly loaded library; unloaded at the end of the block."""
    library, data = _find_library()
    with _LOCK:
        try:
            loaded = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:  # not loaded, as it should be
            engine = ctypes.CDLL(library)
        else:
            _ctypes.dlclose(loaded._handle)
            raise DataError(
                f"{library}: already loaded in this process, so that speech would not be reproducible;"
                " run `prepare synthetic` in a process of its own"
            )
        try:
            _initialize(engine, data)
            yield engine
        finally:
            engine.espeak_Terminate()
            _ctypes.dlclose(engine._handle)


def _initialize(engine: ctypes.CDLL, data: str) -> None:
    """Initialise the engine, and seed its random numbers and the C library's, which some variants use."""
    engine.espeak_Info.restype = ctypes.c_char_p
    engine.espeak_ListVoices.restype = ctypes.POINTER(ctypes.POINTER(_Voice))
    rate = engine.espeak_Initialize(_SYNCHRONOUS, 0, data.encode(), _DONT_EXIT)
    found = ctypes.c_char_p()
    engine.espeak_Info(ctypes.byref(found))
    if rate != SAMPLE_RATE or found.value != data.encode():
        raise DataError(f"{data}: espeak-ng cannot read its data there; reinstall with {_INSTALL}")
    engine.espeak_ng_SetRandSeed(ctypes.c_long(1))
    ctypes.CDLL(None).srand(1)


@cache
def _find_library() -> tuple[str, str]:
    """Paths of the library and of its data. Raises DataError when they are not installed."""
    try:
        import espeakng_loader
    except ImportError as error:
        raise DataError(f"espeak-ng: not installed; run {_INSTALL}") from error
    data: str = espeakng_loader.get_data_path()
    if len(os.fsencode(data)) > _MAX_PATH:  # too long for the library: use a link in the temporary folder
        folder = Path(tempfile.mkdtemp(prefix="espeak-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        link = folder / "espeak-ng-data"
        link.symlink_to(data, target_is_directory=True)
        data = str(link)
    return espeakng_loader.get_library_path(), data


def _check(status: int, what: str) -> None:
    if status != 0:
        raise RuntimeError(f"espeak-ng refused {what} (status {status})")
