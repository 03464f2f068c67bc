# SPDX-License-Identifier: Apache-2.0
"""Faults and remarks about data lists: audio, transcripts, lengths, and what utterances have in
common.

Each `find_…` yields all findings of a group. `KINDS` says which kinds are faults, and what to do.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import regex  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray

from wenet_hs.config.encoders import PretrainedConf
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.corpus.audio_check import CRASHED, parallel_map
from wenet_hs.corpus.edits import fold_speaker
from wenet_hs.corpus.letters import DIGITS, TAG, Unit, check_letters, name_unit
from wenet_hs.corpus.output import find_implausible, find_overlaps, plain_text
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


FAULT_RULE = "training leaves these utterances out"
REMARK_RULE = "training uses these utterances"


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
    """Lines about all transcripts of a language together."""

    def keys(self, *, is_fault: bool) -> set[str]:
        """The keys of the utterances with a fault, or of those with a remark."""
        keys = set[str]()
        for kind, findings in self.findings.items():
            if (kind in FAULTS) == is_fault:
                keys |= {finding.key for finding in findings}
        return keys


class Clip(NamedTuple):
    """What the samples of an utterance show."""

    fault: str | None = None
    """Why they cannot be read; then the other values are not known."""
    rate: int = 0
    """Samples per second."""
    duration_s: float = 0.0
    peak: float = 0.0
    """Greatest absolute sample, from 0 to 1 (full scale)."""
    clipped: float = 0.0
    """Share of samples in runs at full scale."""
    is_silent: bool = False
    digest: bytes = b""
    """Of the samples: equal for equal audio."""


# ---- lists


def read_lists(paths: Sequence[Path]) -> dict[str, list[Utterance]]:
    """Name of the set → its utterances. The name is that of the folder of a data.list, or of a file.

    Raises DataError with the faults of all lists: folders, unreadable lists, and keys that an
    earlier list has.
    """
    sets = dict[str, list[Utterance]]()
    faults = list[str]()
    path_of_key = dict[str, Path]()
    for name, path in zip(_name_sets(paths), paths, strict=True):
        try:
            if path.is_dir():
                raise _make_folder_error(path)
            utterances = read_data_list(path)
        except DataError as error:
            faults.append(str(error))
            continue
        sets[name] = utterances
        repeated_keys = [u.key for u in utterances if u.key in path_of_key]
        path_of_key |= {u.key: path for u in utterances if u.key not in path_of_key}
        if repeated_keys:
            first_key = repeated_keys[0]
            faults.append(
                f"{path}: {len(repeated_keys)} keys are also in {path_of_key[first_key]}, "
                f"the first is {first_key!r}; give each list once, and each utterance a unique key"
            )
    if faults:
        raise DataError("\n".join(faults))
    return sets


def _make_folder_error(path: Path) -> DataError:
    """The error for a folder in place of a list; it names the lists in it, that of train first."""
    lists = sorted(path.glob("**/data.list"))
    lists.sort(key=lambda file: file.parent.name != "train")  # False, which is train, comes first
    listed = " ".join(map(str, lists)) or "a data.list; `wenet-hs prepare` makes it"
    return DataError(path, "a folder", f"give {listed}")


def _name_sets(paths: Sequence[Path]) -> list[str]:
    """The folder of each data.list, or the stem of another file; if names are equal, the paths."""
    names = [
        path.absolute().parent.name if path.name == "data.list" else path.stem for path in paths
    ]
    has_equal_names = len(set(names)) < len(names)
    return [str(path) for path in paths] if has_equal_names else names


def read_made_sets(paths: Sequence[Path]) -> dict[str, str]:
    """The sets that `prepare` held out itself, by name → what it printed about them.

    The stats.json beside the folder of a data.list says so; a file of another program is ignored.
    """
    made_sets = dict[str, str]()
    for name, path in zip(_name_sets(paths), paths, strict=True):
        folder = path.absolute().parent
        stats_file = folder.parent / "stats.json"
        if path.name != "data.list" or not stats_file.is_file():
            continue
        with suppress(ValueError):  # no JSON: the file is of another program
            stats = json.loads(stats_file.read_text("utf-8"))
            if isinstance(stats, dict) and folder.name in stats.get("made_sets", ()):
                made_sets[name] = f"{stats_file}: {stats['sets']}"
    return made_sets


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
        made_sets: the sets that `prepare` held out. Their speakers are not compared: `prepare` has
            printed how many speakers are in several sets.
        num_workers: processes; 0: only this one.
        min_count: a unit that occurs less often is rare.
    """
    utterances = [utterance for _, utterance in _iterate_utterances(sets)]
    measured = parallel_map(
        measure,
        utterances,
        num_workers=num_workers,
        description="audio",
        on_crash=lambda _: Clip(fault=CRASHED),
    )
    clips = {u.key: clip for u, clip in zip(utterances, measured, strict=True)}
    findings = [*find_in_audio(sets, clips, config.dataset_conf.resample_conf.resample_rate)]
    sets = _replace_durations(sets, clips)
    # An empty table is sufficient to divide transcripts into units.
    tokenizer = make_tokenizer(unit, UnitTable.from_units(()) if table is None else table)
    units = Counter[str]()
    for utterance in utterances:
        units.update(tokenizer.split(utterance.txt))
    findings += find_lengths(sets, tokenizer, config)
    findings += find_speaking_rates(sets, unit)
    findings += find_shared_sentences(sets, unit)
    findings += find_shared_speakers(sets, made_sets)
    findings += find_same_audio(sets, clips)
    findings += find_overlapping(sets)
    findings += find_in_texts(sets, unit)
    findings += find_rare_units(sets, units, tokenizer, min_count)
    if table is not None:
        findings += find_unknown_units(sets, tokenizer)
    letter_findings, remarks = find_letters(sets, unit)
    findings += letter_findings
    return Checked(
        sets=sets,
        findings=_group_by_kind(findings),
        rates=_count_rates(clips),
        units=units,
        remarks=remarks,
    )


def _iterate_utterances(sets: Sets) -> Iterator[tuple[str, Utterance]]:
    """Each utterance with the name of its set, set by set."""
    for name, utterances in sets.items():
        for utterance in utterances:
            yield name, utterance


def _replace_durations(sets: Sets, clips: Mapping[str, Clip]) -> dict[str, list[Utterance]]:
    """The sets with the durations of the audio; an utterance that cannot be read keeps its own."""
    with_durations: dict[str, list[Utterance]] = {name: [] for name in sets}
    for name, utterance in _iterate_utterances(sets):
        clip = clips[utterance.key]
        if clip.fault is None:
            utterance = replace(utterance, duration=round(clip.duration_s, 3))
        with_durations[name].append(utterance)
    return with_durations


def _count_rates(clips: Mapping[str, Clip]) -> Counter[int]:
    """Sample rate in Hz → number of clips; those that cannot be read have none."""
    return Counter(clip.rate for clip in clips.values() if clip.rate)


def _group_by_kind(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """The findings by kind, in the order of `KINDS`, the worst first; no kind without findings."""
    by_kind: dict[str, list[Finding]] = {kind: [] for kind in KINDS}
    for finding in findings:
        by_kind[finding.kind].append(finding)
    for of_kind in by_kind.values():
        of_kind.sort(key=lambda finding: -finding.amount)
    return {kind: of_kind for kind, of_kind in by_kind.items() if of_kind}


# ---- audio

_FULL_SCALE = 0.999
_RUN = 3
"""So many samples at full scale, one after the other, are clipped."""
_MAX_CLIPPED = 0.001
"""Share of clipped samples up to which there is no remark."""
_MIN_PEAK = 0.01  # -40 dB of full scale
NO_AUDIO = (
    "missing audio",
    "audio for PyAV",
    "unreadable audio",
    "cut-off audio",
    "outside the audio",
)
"""Kinds of findings about audio that cannot be read."""
_KIND_OF_REASON = {
    "missing": "missing audio",
    "cut off": "cut-off audio",
    "damaged": "cut-off audio",
    "outside": "outside the audio",
}
"""First words of the reason why audio cannot be read → kind of finding."""


def measure(utterance: Utterance) -> Clip:
    """Decode an utterance and measure its samples; audio that cannot be read is a fault.

    Only the segment is decoded. To find its start takes milliseconds, or up to 0.1 s in MP3.
    """
    try:
        samples, rate, _ = read_segment(utterance)
    except AudioError as error:
        return Clip(fault=error.found)
    loudness = np.abs(samples)
    return Clip(
        rate=rate,
        duration_s=len(samples) / rate,
        peak=float(loudness.max()),
        clipped=_measure_clipped_share(loudness),
        is_silent=is_silent(torch.from_numpy(samples)),
        digest=hashlib.blake2b(samples.tobytes(), digest_size=16).digest(),
    )


def _measure_clipped_share(loudness: NDArray[np.float32]) -> float:
    """The share of samples in runs of at least three at full scale, from 0 to 1.

    `loudness`: absolute samples (N,).
    """
    if len(loudness) < _RUN:
        return 0.0
    is_full = loudness >= _FULL_SCALE
    # The sum of each three neighbours is 3 where a run begins.
    begins_run = np.convolve(is_full, np.ones(_RUN), "valid") == _RUN
    if not begins_run.any():
        return 0.0
    # A sample is in a run if one begins with it, or with one of the two samples before it.
    is_in_run = np.convolve(begins_run, np.ones(_RUN)) > 0
    return float(is_in_run.mean())


def find_in_audio(sets: Sets, clips: Mapping[str, Clip], sample_rate: int) -> Iterator[Finding]:
    """Findings about the audio of each utterance; `sample_rate` is that of the training, Hz.

    `amount` orders the findings of one kind: longer silence, quieter clips and lower rates are
    worse. An utterance whose audio cannot be read has only this finding.
    """
    rates = _count_rates(clips)
    # 0 if no clip can be read; then no clip is compared with it.
    most_frequent_rate = max(rates, key=lambda rate: rates[rate], default=0)
    for name, u in _iterate_utterances(sets):
        clip = clips[u.key]
        if clip.fault:
            kind = _find_kind_without_audio(clip.fault)
            yield Finding(name, u.key, kind, details=f"{u.wav}: {clip.fault}")
            continue
        if u.duration is not None:
            reason = length_fault(clip.duration_s, u.duration, "the list")
            if reason is not None:
                difference_s = abs(clip.duration_s - u.duration)
                yield Finding(name, u.key, "other duration", details=reason, amount=difference_s)
        if clip.is_silent:
            details = f"{clip.duration_s:.2f} s"
            yield Finding(name, u.key, "silent", details=details, amount=clip.duration_s)
        elif clip.peak < _MIN_PEAK:
            details = f"peak {20 * np.log10(clip.peak):.0f} dB"
            yield Finding(name, u.key, "very quiet", details=details, amount=-clip.peak)
        if clip.clipped > _MAX_CLIPPED:
            details = f"{clip.clipped:.2%} of the samples"
            yield Finding(name, u.key, "clipped", details=details, amount=clip.clipped)
        if clip.rate < sample_rate:
            details = f"{clip.rate} Hz, below {sample_rate} Hz"
            yield Finding(name, u.key, "low sample rate", details=details, amount=-clip.rate)
        if clip.rate != most_frequent_rate:
            details = f"{clip.rate} Hz, most have {most_frequent_rate} Hz"
            yield Finding(name, u.key, "other sample rate", details=details, amount=-clip.rate)


def _find_kind_without_audio(reason: str) -> str:
    """The kind of finding, one of `NO_AUDIO`, by the reason why an utterance cannot be read."""
    if NEEDS_PYAV in reason:
        return "audio for PyAV"
    for first_words, kind in _KIND_OF_REASON.items():
        if reason.startswith(first_words):
            return kind
    return "unreadable audio"


# ---- lengths


def find_lengths(sets: Sets, tokenizer: Tokenizer, config: ExperimentConfig) -> Iterator[Finding]:
    """Transcripts that CTC cannot align, and utterances that `filter_conf` leaves out.

    Utterances without a known duration or without text are not checked.
    """
    with_lengths = _select_with_length(sets)
    seconds = [u.duration or 0.0 for _, u in with_lengths]
    number_of_unit = dict[str, int]()
    for (name, u), num_frames in zip(
        with_lengths, _count_encoder_frames(seconds, config), strict=True
    ):
        # Numbers in place of the table's ids: units that the table lacks are counted too.
        units = tokenizer.split(u.txt)
        ids = [number_of_unit.setdefault(unit, len(number_of_unit)) for unit in units]
        duration_s = u.duration or 0.0
        num_needed = ctc_frames_needed(ids)
        if num_frames < num_needed:
            details = (
                f"{duration_s:.2f} s are {num_frames} encoder frames, "
                f"CTC needs {num_needed} for {len(ids)} units"
            )
            amount = num_needed / max(num_frames, 1)  # very short audio has no frame
            yield Finding(name, u.key, "too long for CTC", details=details, amount=amount)
            continue
        reason = reason_to_reject(ids, duration_s, num_frames, config.dataset_conf.filter_conf)
        if reason:
            yield Finding(name, u.key, "length limits", details=reason)


def _select_with_length(sets: Sets) -> list[tuple[str, Utterance]]:
    """The utterances with known duration and text, each with the name of its set."""
    return [(name, u) for name, u in _iterate_utterances(sets) if u.duration and u.txt.strip()]


def _count_encoder_frames(seconds: Sequence[float], config: ExperimentConfig) -> list[int]:
    """The frames that the encoder gives for so many seconds of audio each."""
    subsampling = Subsampling()
    if isinstance(config.encoder_conf, PretrainedConf):
        # Such encoders give 50 frames per second, without subsampling. This is not measured,
        # because the files of the encoder need not be here.
        nums_features = [int(50 * duration_s) for duration_s in seconds]
    else:
        # Only the lengths are computed, so the layers of the encoder are not built.
        subsampling.geometry = CONVOLUTIONS.get(config.encoder_conf.input_layer, ())
        frontend = build_frontend(config.dataset_conf)
        nums_features = frontend.count_frames(np.array(seconds)).tolist()
    return [subsampling.output_length(num_features) for num_features in nums_features]


def find_speaking_rates(sets: Sets, unit: Unit) -> Iterator[Finding]:
    """Utterances that are far too long or too short for their transcripts."""
    with_lengths = _select_with_length(sets)
    set_of_key = {u.key: name for name, u in with_lengths}
    implausible = find_implausible([u for _, u in with_lengths], unit)
    for number, clip in enumerate(implausible):
        key = clip.utterance.key
        details = f"{clip.seconds_per_unit:.3f} s per unit, the median is {clip.usual_s:.3f} s"
        amount = -number  # the first clip is the farthest from the median, so the worst
        yield Finding(set_of_key[key], key, "speaking rate", details=details, amount=amount)


# ---- what utterances have in common


def find_shared_sentences(sets: Sets, unit: Unit) -> Iterator[Finding]:
    """Utterances whose sentence an earlier set has too, in the same language."""
    first_of_sentence = dict[tuple[str | None, str], tuple[str, str]]()
    for name, u in _iterate_utterances(sets):
        text = plain_text(u, unit).strip()
        if not text:
            continue
        # The first utterance with this sentence is stored, and compared with all later ones.
        first_set, first_key = first_of_sentence.setdefault((u.lang, text), (name, u.key))
        if first_set != name:
            details = f"also in {first_set}: {first_key}"
            yield Finding(name, u.key, "sentence in two sets", details=details)


def find_shared_speakers(sets: Sets, made_sets: Collection[str] = ()) -> Iterator[Finding]:
    """Utterances whose speaker an earlier set has too.

    Not compared are utterances without a speaker, and sets in `made_sets`: those that `prepare`
    held out.
    """
    first_set_of = dict[str, str]()
    for name, u in _iterate_utterances(sets):
        if u.speaker is None or name in made_sets:
            continue
        first_set = first_set_of.setdefault(fold_speaker(u.speaker), name)
        if first_set != name:
            details = f"{u.speaker} is also in {first_set}"
            yield Finding(name, u.key, "speaker in two sets", details=details)


def find_same_audio(sets: Sets, clips: Mapping[str, Clip]) -> Iterator[Finding]:
    """Utterances whose samples an earlier utterance has too; silence is not compared.

    Those with another transcript than the earlier one are worse.
    """
    first_of_digest = dict[bytes, Utterance]()
    for name, u in _iterate_utterances(sets):
        clip = clips[u.key]
        if clip.is_silent or not clip.digest:  # no digest: it cannot be read
            continue
        first = first_of_digest.setdefault(clip.digest, u)
        if first is u:  # no earlier utterance has these samples
            continue
        has_same_text = first.txt == u.txt
        which = "same" if has_same_text else "another"
        details = f"the samples of {first.key}, {which} transcript"
        amount = 0.0 if has_same_text else 1.0
        yield Finding(name, u.key, "same audio", details=details, amount=amount)


def find_overlapping(sets: Sets) -> Iterator[Finding]:
    """Segments of one recording and one speaker that overlap by more than 0.1 s.

    Segments with equal times are left out: they are found as the same audio.
    """
    set_of_key = {u.key: name for name, u in _iterate_utterances(sets)}
    utterances = [u for _, u in _iterate_utterances(sets)]
    for earlier, later, start, end in find_overlaps(utterances, by_speaker=True):
        if (earlier.start, earlier.end) == (later.start, later.end):
            continue
        details = f"{end - start:.2f} s of it are also in {earlier.key}"
        yield Finding(
            set_of_key[later.key],
            later.key,
            "overlapping segments",
            details=details,
            amount=end - start,
        )


# ---- transcripts

_INVISIBLE = regex.compile(r"(?V1)[[\p{Cc}\p{Cf}\p{Co}\p{Cn}\uFFFD]--[\u200C\u200D]]")
"""Characters without a picture; the joiners of Indic and Persian scripts are letters."""
_NO_PHONE = regex.compile(r"[\p{Lu}\p{P}]")
"""What is in no transcript of phones: upper case and punctuation."""


def find_in_texts(sets: Sets, unit: Unit) -> Iterator[Finding]:
    """Empty transcripts, tags, digits, invisible characters, and text that is not normalised.

    Tags are removed before digits are searched, and before the text is compared with its normalised
    form. Spaces between phones do not matter.
    """
    for name, u in _iterate_utterances(sets):
        if not u.txt.strip():
            yield Finding(name, u.key, "empty transcript")
        without_tags = TAG.sub(" ", u.txt)
        code_points = [f"U+{ord(character):04X}" for character in _INVISIBLE.findall(u.txt)]
        for kind, pieces in (
            ("tags", TAG.findall(u.txt)),
            ("digits", DIGITS.findall(without_tags)),
            ("invisible characters", code_points),
        ):
            if pieces:
                different = " ".join(dict.fromkeys(pieces))
                yield Finding(name, u.key, kind, details=different, amount=len(pieces))
        if unit == "phone":
            normal = _NO_PHONE.sub("", without_tags)
        else:
            normal = normalize(without_tags, u.lang)
        has_other_words = normal.split() != without_tags.split()
        has_other_spaces = unit == "char" and u.txt != " ".join(u.txt.split())
        if has_other_words or has_other_spaces:
            removed = [
                character
                for character in _visible_characters(without_tags)
                if character not in normal
            ]
            what_is_wrong = " ".join(removed) or "white space"
            details = f"{what_is_wrong}; normalised: {' '.join(normal.split())}"
            yield Finding(name, u.key, "not normalised", details=details, amount=len(removed))


def _visible_characters(text: str) -> list[str]:
    """The different characters of a text without white space, in their order."""
    return [character for character in dict.fromkeys(text) if not character.isspace()]


def find_rare_units(
    sets: Sets, units: Counter[str], tokenizer: Tokenizer, min_count: int
) -> Iterator[Finding]:
    """Utterances with units that all lists together have fewer than `min_count` times.

    `units`: the number of each unit in all lists.
    """
    for name, u in _iterate_utterances(sets):
        rare = {unit: units[unit] for unit in tokenizer.split(u.txt) if units[unit] < min_count}
        if rare:
            details = ", ".join(f"{name_unit(unit)}: {num} in all" for unit, num in rare.items())
            amount = -min(rare.values())  # the rarer, the worse
            yield Finding(name, u.key, "rare unit", details=details, amount=amount)


def find_unknown_units(sets: Sets, tokenizer: Tokenizer) -> Iterator[Finding]:
    """Utterances with units that the table of the training does not have."""
    for name, u in _iterate_utterances(sets):
        unknown = tokenizer.count_unknown(u.txt)
        if unknown:
            details = ", ".join(map(name_unit, unknown))
            amount = unknown.total()
            yield Finding(name, u.key, "unknown unit", details=details, amount=amount)


def find_letters(sets: Sets, unit: Unit) -> tuple[list[Finding], list[str]]:
    """Wrong letters, and a remark on all transcripts of each language that has something to say.

    Letters are compared within a language. Phones are compared in all languages together, because
    they are the same signs in each.
    """
    texts_of_lang = defaultdict[str, dict[str, str]](dict)
    for _, u in _iterate_utterances(sets):
        lang = "" if unit == "phone" else u.lang or ""  # "": all languages, or an unknown one
        texts_of_lang[lang][u.key] = u.txt
    wrong_letters = dict[str, list[str]]()
    remarks = list[str]()
    for lang, texts in texts_of_lang.items():
        wrong_of_lang, remark = check_letters(texts, unit)
        wrong_letters |= wrong_of_lang
        if remark:
            remarks.append(f"{lang or 'all'}: {remark}")
    findings = list[Finding]()
    for name, u in _iterate_utterances(sets):
        if u.key in wrong_letters:
            wrong = wrong_letters[u.key]
            findings.append(
                Finding(name, u.key, "unusual letters", details="; ".join(wrong), amount=len(wrong))
            )
    return findings, remarks
