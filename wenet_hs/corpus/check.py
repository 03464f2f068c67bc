# SPDX-License-Identifier: Apache-2.0
"""Faults and remarks about data lists: audio, transcripts, lengths, and what utterances have in
common.

Each `find_…` yields all findings of a group. `KINDS` says which kinds are faults, and what to do.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import regex  # type: ignore[import-untyped]
import torch

from wenet_hs.config.encoders import PretrainedConf
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.corpus.audio_check import CRASHED, parallel_map
from wenet_hs.corpus.edits import fold_speaker
from wenet_hs.corpus.letters import DIGITS, TAG, Unit, check_letters, name_unit
from wenet_hs.corpus.output import find_implausible, find_overlaps
from wenet_hs.corpus.splits import plain_text
from wenet_hs.data.audio import AudioError, is_silent, length_fault, read_segment
from wenet_hs.data.decoders import NEEDS_PYAV
from wenet_hs.data.sampling import ctc_frames_needed, reason_to_reject
from wenet_hs.frontends.build import build_frontend
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.nn.subsampling import CONVOLUTIONS, Subsampling
from wenet_hs.text.normalize import normalize
from wenet_hs.text.tokenizer import Tokenizer, make_tokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree.errors import DataError

Sets = Mapping[str, Sequence[Utterance]]
"""Name of a set → its utterances."""


FAULT_RULE, REMARK_RULE = "training leaves these utterances out", "training uses these utterances"


FAULTS = {
    "missing audio": "restore the file, or correct wav in the list",
    "audio for PyAV": "pip install 'wenet_hs[media]', or convert the files to FLAC or wav",
    "unreadable audio": "copy or convert the file again, or leave the utterance out",
    "cut-off audio": "copy the file again",
    "outside the audio": "correct start, end or channel in the list",
    "other duration": "correct duration in the list, or copy the file again",
    "empty transcript": "transcribe it, or leave it out",
    "too long for CTC": "listen, and compare the audio with the transcript",
    "length limits": "cut or join segments, or change filter_conf and give --config",
}
"""Kind of findings → what to do, in the order of the output."""
KINDS = FAULTS | {
    "speaking rate": "listen, and compare the audio with the transcript",
    "silent": "leave it out",
    "clipped": "listen; record again if speech is distorted",
    "very quiet": "listen; leave it out if there is only noise",
    "low sample rate": "use the original recording; never mix telephone speech with other speech",
    "other sample rate": "check that the sets have the same mixture",
    "same audio": "keep one of the two",
    "overlapping segments": "name the speakers if these are two people; otherwise correct start and end in the list",
    "sentence in two sets": "move it to one set, or results are too good",
    "speaker in two sets": "move the speaker to one set, or state it with the results",
    "unknown unit": "correct it if it is a mistake, or use a table that has it; training reads it as <unk>",
    "rare unit": "correct it if it is a mistake; nothing can be learnt from few examples",
    "unusual letters": "replace the letter if it is a mistake",
    "digits": "write numbers as they are spoken; digits that mark tones are right",
    "tags": "remove them, or leave the utterance out",
    "not normalised": "write it in lower case without punctuation, as `wenet-hs prepare` does for text",
    "invisible characters": "remove them; private-use characters need their Unicode letter",
}
"""Faults, then remarks."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault or remark about one utterance."""

    set: str
    key: str
    kind: str
    details: str = ""
    amount: float = 0.0
    """The larger, the worse; only for the order within a kind."""


@dataclass(frozen=True)
class Checked:
    """The result of a check."""

    sets: Sets
    """With the durations of the audio, where it can be read."""
    findings: Mapping[str, Sequence[Finding]]
    """By kind, in the order of `KINDS`; at most one per utterance and kind, the worst first."""
    rates: Counter[int]
    """Sample rate in Hz → number of utterances."""
    units: Counter[str]
    remarks: Sequence[str]
    """On all transcripts of a language."""

    def keys(self, *, is_fault: bool) -> set[str]:
        """The utterances with a fault, or with a remark."""
        return {
            one.key
            for kind, found in self.findings.items()
            if (kind in FAULTS) == is_fault
            for one in found
        }


class Clip(NamedTuple):
    """What the samples of an utterance show."""

    fault: str | None = None
    rate: int = 0
    duration_s: float = 0.0
    peak: float = 0.0
    clipped: float = 0.0
    """Share of samples in runs at full scale."""
    is_silent: bool = False
    digest: bytes = b""


def read_lists(paths: Sequence[Path]) -> dict[str, list[Utterance]]:
    """The utterances by name of the set: that of the folder of a `data.list`, or of the file.

    Raises DataError with the faults of all lists.
    """
    sets, faults = dict[str, list[Utterance]](), list[str]()
    first: dict[str, Path] = {}
    for name, path in zip(_name_sets(paths), paths, strict=True):
        try:
            if path.is_dir():
                found = sorted(
                    path.glob("**/data.list"), key=lambda one: (one.parent.name != "train", one)
                )
                lists = " ".join(map(str, found)) or "a data.list; `wenet-hs prepare` makes it"
                raise DataError(path, "a folder", f"give {lists}")
            sets[name] = read_data_list(path)
        except DataError as error:
            faults.append(str(error))
            continue
        same = [u.key for u in sets[name] if first.setdefault(u.key, path) is not path]
        if same:
            what = (
                f"{path}: {len(same)} keys are also in {first[same[0]]}, the first is {same[0]!r}"
            )
            faults.append(f"{what}; give each list once, and each utterance a unique key")
    if faults:
        raise DataError("\n".join(faults))
    return sets


def _name_sets(paths: Sequence[Path]) -> list[str]:
    names = [
        path.absolute().parent.name if path.name == "data.list" else path.stem for path in paths
    ]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def read_made_sets(paths: Sequence[Path]) -> dict[str, str]:
    """Which sets `prepare` held out itself, by the stats.json beside their folder → what it printed
    about them.
    """
    made = dict[str, str]()
    for name, path in zip(_name_sets(paths), paths, strict=True):
        stats = path.absolute().parent.parent / "stats.json"
        if path.name == "data.list" and stats.is_file():
            with suppress(ValueError):  # of another program
                content = json.loads(stats.read_text("utf-8"))
                if isinstance(content, dict) and path.absolute().parent.name in content.get(
                    "made_sets", ()
                ):
                    made[name] = f"{stats}: {content['sets']}"
    return made


def check_lists(
    sets: Sets,
    *,
    config: ExperimentConfig,
    unit: Unit = "char",
    table: UnitTable | None = None,
    min_count: int = 5,
    num_workers: int = 0,
    made_sets: Collection[str] = (),
) -> Checked:
    """All findings about lists with unique keys. Decodes each utterance once.

    Args:
        config: features, subsampling and limits of the training.
        unit: the kind of tokenizer that divides the transcripts.
        table: the units of the training. None: they are those of the transcripts, and none is
            unknown.
        made_sets: those that `prepare` held out; what speakers they have in common with others it
            has stated.
        min_count: a unit that occurs less often is rare.
    """
    utterances = [u for of_set in sets.values() for u in of_set]
    measured = parallel_map(
        measure,
        utterances,
        num_workers=num_workers,
        description="audio",
        on_crash=lambda _: Clip(fault=CRASHED),
    )
    clips = {u.key: clip for u, clip in zip(utterances, measured, strict=True)}
    findings = [*find_in_audio(sets, clips, config.dataset_conf.resample_conf.resample_rate)]
    sets = {
        name: [_with_duration(u, clips[u.key]) for u in of_set] for name, of_set in sets.items()
    }
    tokenizer = make_tokenizer(unit, UnitTable.from_units(()) if table is None else table)
    units = Counter(x for u in utterances for x in tokenizer.split(u.txt))
    findings += find_lengths(sets, tokenizer, unit, config)
    findings += find_shared(sets, clips, unit, made_sets)
    findings += find_overlapping(sets)
    findings += find_in_texts(sets, unit)
    findings += find_rare_units(sets, units, tokenizer, min_count)
    if table is not None:
        findings += find_unknown_units(sets, tokenizer)
    of_letters, remarks = find_letters(sets, unit)
    findings += of_letters
    by_kind = {kind: [found for found in findings if found.kind == kind] for kind in KINDS}
    for found in by_kind.values():
        found.sort(key=lambda one: -one.amount)
    rates = Counter(clip.rate for clip in clips.values() if clip.rate)
    return Checked(
        sets, {kind: found for kind, found in by_kind.items() if found}, rates, units, remarks
    )


def _each(sets: Sets) -> Iterator[tuple[str, Utterance]]:
    return ((name, u) for name, of_set in sets.items() for u in of_set)


# ---- audio

_FULL_SCALE, _RUN = 0.999, 3
_MAX_CLIPPED = 0.001
_MIN_PEAK = 0.01  # -40 dB of full scale
NO_AUDIO = (
    "missing audio",
    "audio for PyAV",
    "unreadable audio",
    "cut-off audio",
    "outside the audio",
)
_OF_REASON = {
    "missing": "missing audio",
    "cut off": "cut-off audio",
    "damaged": "cut-off audio",
    "outside": "outside the audio",
}


def measure(utterance: Utterance) -> Clip:
    """Decode an utterance.

    A segment is read from its start: libsndfile finds it in milliseconds (MP3: up to 0.1 s).
    """
    try:
        samples, rate, _ = read_segment(utterance)
    except AudioError as error:
        return Clip(fault=error.found)
    loud = np.abs(samples)
    full = (
        np.convolve(loud >= _FULL_SCALE, np.ones(_RUN), "valid") == _RUN
        if len(loud) >= _RUN
        else np.zeros(1)
    )
    clipped = float((np.convolve(full, np.ones(_RUN)) > 0).mean()) if full.any() else 0.0
    digest = hashlib.blake2b(samples.tobytes(), digest_size=16).digest()
    silent = is_silent(torch.from_numpy(samples))
    return Clip(None, rate, len(samples) / rate, float(loud.max()), clipped, silent, digest)


def _with_duration(utterance: Utterance, clip: Clip) -> Utterance:
    return utterance if clip.fault else replace(utterance, duration=round(clip.duration_s, 3))


def find_in_audio(sets: Sets, clips: Mapping[str, Clip], sample_rate: int) -> Iterator[Finding]:
    """Findings about the audio of each utterance; `sample_rate` is that of the training."""
    rates = Counter(clip.rate for clip in clips.values() if clip.rate)
    usual = max(rates, key=lambda rate: rates[rate], default=0)
    for name, u in _each(sets):
        clip = clips[u.key]
        if clip.fault:
            yield Finding(name, u.key, _kind_without_audio(clip.fault), f"{u.wav}: {clip.fault}")
            continue
        if u.duration is not None and (
            reason := length_fault(clip.duration_s, u.duration, "the list")
        ):
            yield Finding(name, u.key, "other duration", reason, abs(clip.duration_s - u.duration))
        if clip.is_silent:
            yield Finding(name, u.key, "silent", f"{clip.duration_s:.2f} s", clip.duration_s)
        elif clip.peak < _MIN_PEAK:
            yield Finding(
                name, u.key, "very quiet", f"peak {20 * np.log10(clip.peak):.0f} dB", -clip.peak
            )
        if clip.clipped > _MAX_CLIPPED:
            yield Finding(
                name, u.key, "clipped", f"{clip.clipped:.2%} of the samples", clip.clipped
            )
        if clip.rate < sample_rate:
            yield Finding(
                name,
                u.key,
                "low sample rate",
                f"{clip.rate} Hz, below {sample_rate} Hz",
                -clip.rate,
            )
        if clip.rate != usual:
            yield Finding(
                name,
                u.key,
                "other sample rate",
                f"{clip.rate} Hz, most have {usual} Hz",
                -clip.rate,
            )


def _kind_without_audio(reason: str) -> str:
    """The kind of finding, one of `NO_AUDIO`, by the reason why an utterance cannot be read."""
    if NEEDS_PYAV in reason:
        return "audio for PyAV"
    of_reason = (kind for start, kind in _OF_REASON.items() if reason.startswith(start))
    return next(of_reason, "unreadable audio")


# ---- lengths


def find_lengths(
    sets: Sets, tokenizer: Tokenizer, unit: Unit, config: ExperimentConfig
) -> Iterator[Finding]:
    """Transcripts that CTC cannot align, utterances that `filter_conf` leaves out, and implausible
    speaking rates.
    """
    known = [(name, u, u.duration) for name, u in _each(sets) if u.duration and u.txt.strip()]
    number_of_unit = dict[str, int]()
    subsampling = Subsampling()
    if isinstance(
        config.encoder_conf, PretrainedConf
    ):  # a frame per 20 ms: its files need not be here
        all_frames = [int(50 * seconds) for _, _, seconds in known]
    else:
        subsampling.geometry = CONVOLUTIONS.get(config.encoder_conf.input_layer, ())
        all_frames = (
            build_frontend(config.dataset_conf)
            .count_frames(np.array([s for _, _, s in known]))
            .tolist()
        )
    for (name, u, seconds), num_frames in zip(known, all_frames, strict=True):
        # Units outside the table have numbers too: the lengths count, not the table's ids.
        ids = [number_of_unit.setdefault(x, len(number_of_unit)) for x in tokenizer.split(u.txt)]
        num = subsampling.output_length(num_frames)
        needed = ctc_frames_needed(ids)
        if num < needed:
            details = (
                f"{seconds:.2f} s are {num} encoder frames, CTC needs {needed} for {len(ids)} units"
            )
            yield Finding(name, u.key, "too long for CTC", details, needed / max(num, 1))
        elif reason := reason_to_reject(ids, seconds, num, config.dataset_conf.filter_conf):
            yield Finding(name, u.key, "length limits", reason)
    name_of = {u.key: name for name, u, _ in known}
    for number, (u, num, usual) in enumerate(find_implausible([u for _, u, _ in known], unit)):
        details = f"{(u.duration or 0.0) / num:.3f} s per unit, the median is {usual:.3f} s"
        yield Finding(name_of[u.key], u.key, "speaking rate", details, -number)


# ---- what utterances have in common


def find_shared(
    sets: Sets, clips: Mapping[str, Clip], unit: Unit, made_sets: Collection[str] = ()
) -> Iterator[Finding]:
    """Sentences and speakers that an earlier set has too, and audio that an earlier utterance has
    too.

    Speakers of `made_sets` are not compared.
    """
    sentences, speakers, audio = (
        dict[object, tuple[str, str]](),
        dict[str, str](),
        dict[bytes, Utterance](),
    )
    for name, u in _each(sets):
        if text := plain_text(u, unit).strip():
            in_set, key = sentences.setdefault((u.lang, text), (name, u.key))
            if in_set != name:
                yield Finding(name, u.key, "sentence in two sets", f"also in {in_set}: {key}")
        if u.speaker is not None and name not in made_sets:
            in_set = speakers.setdefault(fold_speaker(u.speaker), name)
            if in_set != name:
                yield Finding(
                    name, u.key, "speaker in two sets", f"{u.speaker} is also in {in_set}"
                )
        clip = clips[u.key]
        if (
            clip.digest
            and not clip.is_silent
            and (same := audio.setdefault(clip.digest, u)) is not u
        ):
            what = "same" if same.txt == u.txt else "another"
            yield Finding(
                name,
                u.key,
                "same audio",
                f"the samples of {same.key}, {what} transcript",
                what == "another",
            )


def find_overlapping(sets: Sets) -> Iterator[Finding]:
    """Segments of one recording and one speaker that overlap by more than 0.1 s; equal ones are the
    same audio.
    """
    name_of = {u.key: name for name, u in _each(sets)}
    for earlier, later, start, end in find_overlaps([u for _, u in _each(sets)], by_speaker=True):
        if (earlier.start, earlier.end) != (later.start, later.end):
            details = f"{end - start:.2f} s of it are also in {earlier.key}"
            yield Finding(
                name_of[later.key], later.key, "overlapping segments", details, end - start
            )


# ---- transcripts

_INVISIBLE = regex.compile(r"(?V1)[[\p{Cc}\p{Cf}\p{Co}\p{Cn}\uFFFD]--[\u200C\u200D]]")
_NO_PHONE = regex.compile(r"[\p{Lu}\p{P}]")


def find_in_texts(sets: Sets, unit: Unit) -> Iterator[Finding]:
    """Empty transcripts, tags, digits, invisible characters, and text that is not normalised."""
    for name, u in _each(sets):
        if not u.txt.strip():
            yield Finding(name, u.key, "empty transcript")
        text = TAG.sub(" ", u.txt)
        found = {"tags": TAG.findall(u.txt), "digits": DIGITS.findall(text)}
        found["invisible characters"] = [f"U+{ord(c):04X}" for c in _INVISIBLE.findall(u.txt)]
        for kind, pieces in found.items():
            if pieces:
                yield Finding(name, u.key, kind, " ".join(dict.fromkeys(pieces)), len(pieces))
        normal = _NO_PHONE.sub("", text) if unit == "phone" else normalize(text, u.lang)
        has_spaces = unit == "char" and u.txt != " ".join(u.txt.split())
        if normal.split() != text.split() or has_spaces:
            changed = [c for c in dict.fromkeys(text) if c not in normal and not c.isspace()]
            details = (
                f"{' '.join(changed) or 'white space'}; normalised: {' '.join(normal.split())}"
            )
            yield Finding(name, u.key, "not normalised", details, len(changed))


def find_rare_units(
    sets: Sets, units: Counter[str], tokenizer: Tokenizer, min_count: int
) -> Iterator[Finding]:
    """Utterances with units that all lists together have fewer than `min_count` times."""
    for name, u in _each(sets):
        rare = {x: units[x] for x in tokenizer.split(u.txt) if units[x] < min_count}
        if rare:
            details = ", ".join(f"{name_unit(x)}: {count} in all" for x, count in rare.items())
            yield Finding(name, u.key, "rare unit", details, -min(rare.values()))


def find_unknown_units(sets: Sets, tokenizer: Tokenizer) -> Iterator[Finding]:
    """Utterances with units that the table of the training does not have."""
    for name, u in _each(sets):
        unknown = tokenizer.count_unknown(u.txt)
        if unknown:
            yield Finding(
                name, u.key, "unknown unit", ", ".join(map(name_unit, unknown)), unknown.total()
            )


def find_letters(sets: Sets, unit: Unit) -> tuple[list[Finding], list[str]]:
    """Wrong letters, and a remark per language.

    The usual letters are those of a language; of all lists for phones.
    """
    by_lang = defaultdict[str, dict[str, str]](dict)
    for _, u in _each(sets):
        by_lang["" if unit == "phone" else u.lang or ""][u.key] = u.txt
    checked = {lang: check_letters(texts, unit) for lang, texts in by_lang.items()}
    wrong = {key: details for of_lang, _ in checked.values() for key, details in of_lang.items()}
    found = [
        Finding(name, u.key, "unusual letters", "; ".join(d), len(d))
        for name, u in _each(sets)
        if (d := wrong.get(u.key))
    ]
    return found, [f"{lang or 'all'}: {remark}" for lang, (_, remark) in checked.items() if remark]
