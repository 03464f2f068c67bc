# SPDX-License-Identifier: Apache-2.0
"""The same annotations in every form that `prepare` reads."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from praatio import textgrid
from praatio.data_classes.interval_tier import IntervalTier
from pympi import Eaf

RECORDING_S = 12.0


@dataclass(frozen=True)
class Annotation:
    recording: str
    speaker: str
    start_ms: int
    end_ms: int
    text: str
    lang: str = ""
    split: str = ""
    name: str = ""
    """A key of its own; only tables, AudioFolder and Kaldi can carry it."""

    @property
    def key(self) -> str:
        return f"{self.recording.replace(' ', '_')}-{self.start_ms:07d}-{self.end_ms:07d}"


def write_audio(path: Path, seconds: float = RECORDING_S, rate: int = 8000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.random.default_rng(len(path.name)).uniform(-0.1, 0.1, round(seconds * rate))
    soundfile.write(path, samples, rate, subtype="PCM_16")
    return path


def write_table(folder: Path, annotations: list[Annotation]) -> str:
    with (folder / "all.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Path", "Sentence", "speaker", "start", "end", "locale", "split", "id"])
        for a in annotations:
            times = (a.start_ms / 1000, a.end_ms / 1000)
            writer.writerow(
                [f"{a.recording}.wav", a.text, a.speaker, *times, a.lang, a.split, a.name]
            )
    return f"table --table {folder / 'all.csv'}"


def write_kaldi(folder: Path, annotations: list[Annotation]) -> str:
    """Kaldi needs a name per annotation: that of `prepare`, with the speaker where several have the
    same times.
    """
    speakers: dict[str, set[str]] = {}
    for a in annotations:
        speakers.setdefault(a.key, set()).add(a.speaker)
    for split in {a.split for a in annotations}:
        of_set = [a for a in annotations if a.split == split]
        keys = [
            a.name or (a.key if len(speakers[a.key]) == 1 else f"{a.key}-{a.speaker}")
            for a in of_set
        ]
        pairs = list(zip(keys, of_set, strict=True))
        lines = {
            "wav.scp": [
                f"{n.replace(' ', '_')} {folder / n}.wav"
                for n in sorted({a.recording for a in of_set})
            ],
            "text": [f"{key} {a.text}" for key, a in pairs],
            "utt2spk": [f"{key} {a.speaker}" for key, a in pairs],
            "utt2lang": [f"{key} {a.lang}" for key, a in pairs if a.lang],
            "segments": [
                f"{key} {a.recording.replace(' ', '_')} {a.start_ms / 1000} {a.end_ms / 1000}"
                for key, a in pairs
            ],
        }
        target = folder / "kaldi" / split
        target.mkdir(parents=True, exist_ok=True)
        for name, of_file in lines.items():
            (target / name).write_text("\n".join(of_file) + "\n", "utf-8")
    return f"kaldi --corpus {folder / 'kaldi'}"


def write_audio_folder(folder: Path, annotations: list[Annotation]) -> str:
    rows = [
        {"file_name": f"{a.recording}.wav", "transcription": a.text, "speaker": a.speaker}
        | {"start": a.start_ms / 1000, "end": a.end_ms / 1000}
        | {
            name: one
            for name, one in (("language", a.lang), ("split", a.split), ("id", a.name))
            if one
        }
        for a in annotations
    ]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return f"folder --corpus {folder}"


def write_elan(folder: Path, annotations: list[Annotation]) -> str:
    for name in {a.recording for a in annotations}:
        eaf = Eaf()
        eaf.remove_tier("default")
        eaf.add_linked_file(
            f"file:///D:/Daten/{name}.wav", relpath=f"./audio/{name}.wav", mimetype="audio/x-wav"
        )
        for a in (a for a in annotations if a.recording == name):
            if f"utt@{a.speaker}" not in eaf.tiers:
                eaf.add_tier(f"utt@{a.speaker}", part=a.speaker)
            eaf.add_annotation(f"utt@{a.speaker}", a.start_ms, a.end_ms, a.text)
        eaf.to_file(str(folder / f"{name}.eaf"))
    return f"elan --corpus {folder} --tier utt@*"


def write_praat(folder: Path, annotations: list[Annotation], **options: object) -> str:
    for name in {a.recording for a in annotations}:
        grid = textgrid.Textgrid(0, RECORDING_S)
        chosen = [a for a in annotations if a.recording == name]
        for speaker in sorted({a.speaker for a in chosen}):
            spans = [
                (a.start_ms / 1000, a.end_ms / 1000, a.text) for a in chosen if a.speaker == speaker
            ]
            grid.addTier(IntervalTier(speaker, spans, 0, RECORDING_S))
        grid.save(
            str(folder / f"{name}.TextGrid"), format="short_textgrid", includeBlankSpaces=True
        )
    return f"praat --corpus {folder} --tier * --speaker_from tier"


FORMS = {
    "table": write_table,
    "kaldi": write_kaldi,
    "folder": write_audio_folder,
    "elan": write_elan,
    "praat": write_praat,
}
