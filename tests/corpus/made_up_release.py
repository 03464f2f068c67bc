# SPDX-License-Identifier: Apache-2.0
"""Write a made-up Common Voice release: tables of any size, clips that are empty files or short
tones.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

HEADER_11 = (
    "client_id",
    "path",
    "sentence",
    "up_votes",
    "down_votes",
    "age",
    "gender",
    "accents",
    "locale",
    "segment",
)
HEADER_17 = (
    *(
        "client_id",
        "path",
        "sentence_id",
        "sentence",
        "sentence_domain",
        "up_votes",
        "down_votes",
        "age",
        "gender",
    ),
    *("accents", "variant", "locale", "segment"),
)
OFFICIAL_HOURS = {
    "ca": 1700.47, "es": 412.86, "fr": 906.38, "it": 326.43, "pt": 125.24,
    "be": 1158.99, "cs": 59.04, "pl": 154.3, "ru": 179.95, "uk": 72.56,
    "ba": 256.49, "ky": 37.57, "tr": 83.67, "tt": 29.76, "uz": 96.86,
}  # fmt: skip
"""Validated hours of release 11.0 in the paper's 15 languages."""


@dataclass(frozen=True)
class Row:
    """A line of a table."""

    name: str
    sentence: str
    speaker: str
    duration_s: float


def write_table(path: Path, rows: list[Row], header: tuple[str, ...] = HEADER_11) -> None:
    """Write a table with the columns of a release."""
    lines = ["\t".join(header)]
    for row in rows:
        values = {
            "client_id": row.speaker,
            "path": row.name,
            "sentence": row.sentence,
            "sentence_id": "a1b2c3",
        }
        lines.append("\t".join(values.get(column, "") for column in header))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")


def write_language(
    folder: Path, rows: list[Row], *, durations: bool = True, clips: str = "text"
) -> None:
    """Write validated.tsv, clip_durations.tsv and clips/: `text` (see conftest), a `tone` as long
    as stated, `none`.
    """
    write_table(folder / "validated.tsv", rows)
    if durations:
        lines = [
            "clip\tduration[ms]",
            *(f"{row.name}\t{round(row.duration_s * 1000)}" for row in rows),
        ]
        (folder / "clip_durations.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "clips").mkdir(parents=True, exist_ok=True)
    for row in rows:
        path = folder / "clips" / row.name
        if clips == "text":
            path.write_text("silent" if row.name.endswith("9.mp3") else "2.0")
        elif clips == "tone":
            times = np.arange(round(8000 * row.duration_s)) / 8000
            soundfile.write(path, 0.3 * np.sin(2 * np.pi * 300 * times), 8000, format="WAV")
