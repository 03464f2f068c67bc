# SPDX-License-Identifier: Apache-2.0
"""Hours of each language to train on (section 3.1 of the paper), and Common Voice's statistics."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wenet_hs.base.files import read_lines
from wenet_hs.tree.errors import ConfigError, DataError


def sampling_ratios(
    hours: Mapping[str, float], *, alpha: float = 0.5, ratio: float = 0.082
) -> dict[str, float]:
    """The share λ_i of each language's hours to keep.

    λ_i = p_i^(α-1) / Σ_j p_j^α · λ, where p_i is the language's share of all hours and λ is
    `ratio`. So Σ λ_i · hours_i = λ · Σ hours_i. A small language may get λ_i > 1. It is cut to 1,
    because there are no more hours of it. The sum is then smaller, because the shares of the other
    languages are not increased.

    Args:
        hours: hours of each language, > 0.
        alpha: 1 keeps the proportions of the languages, 0 gives each as many hours; in [0, 1].
        ratio: λ, the share of all hours to keep; in (0, 1].
    Raises: ConfigError when alpha, ratio or the hours are out of range.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"--alpha {alpha:g}", "must be between 0 and 1", "the paper uses 0.5")
    if not 0.0 < ratio <= 1.0:
        raise ConfigError(
            f"--ratio {ratio:g}", "must be above 0 and at most 1", "the paper uses 0.082"
        )
    for lang, duration in hours.items():
        if not (math.isfinite(duration) and duration > 0.0):
            raise ConfigError(
                f"language {lang}", f"{duration:g} hours of audio", "leave it out of --langs"
            )
    total = sum(hours.values())
    shares = {lang: duration / total for lang, duration in hours.items()}
    norm = sum(share**alpha for share in shares.values())
    return {lang: min(1.0, share ** (alpha - 1.0) / norm * ratio) for lang, share in shares.items()}


def hours_to_keep(
    hours: Mapping[str, float], alpha: float = 0.5, ratio: float = 0.082
) -> dict[str, float]:
    """Hours of each language after downsampling, λ_i · hours_i; see `sampling_ratios`."""
    ratios = sampling_ratios(hours, alpha=alpha, ratio=ratio)
    return {lang: ratios[lang] * duration for lang, duration in hours.items()}


def ratio_for(total_hours: float, wanted_hours: float) -> float:
    """The λ that keeps `wanted_hours` of `total_hours`, a share in (0, 1].

    Raises ConfigError when more hours are wanted than there are, or none.
    """
    if not 0.0 < wanted_hours <= total_hours:
        most = math.floor(100 * total_hours) / 100  # rounded down, so that this number is accepted
        found = f"must be above 0 and at most {most:.2f}, the hours of all languages"
        raise ConfigError(f"--hours {wanted_hours:g}", found)
    return wanted_hours / total_hours


class ReleaseStatistics(NamedTuple):
    """What the statistics of a Common Voice release say about one language."""

    hours: float
    """Of validated clips."""
    mean_clip_h: float
    """Mean length of a validated clip in hours."""
    num_validated: int
    """Validated clips."""
    num_test: int
    """Clips in the test set of the release."""


def read_statistics(path: Path, langs: Sequence[str]) -> dict[str, ReleaseStatistics]:
    """What the statistics of a Common Voice release say about each of these languages.

    Raises DataError when the file is another one, or lacks a language.
    """
    record_of_lang = _read_languages(path, langs)
    statistics = {}
    for lang, record in record_of_lang.items():
        try:
            statistics[lang] = _read_record(record)
        except (ValueError, TypeError, KeyError, ZeroDivisionError) as error:
            found = f"language {lang}: {type(error).__name__} ({error})"
            numbers = "validDurationSecs, buckets.validated and buckets.test"
            to_do = f"{numbers} must be numbers, and a clip must be validated"
            raise DataError(path, found, to_do) from error
    return statistics


def _read_record(record: Any) -> ReleaseStatistics:
    """The statistics of one language by their names in JSON.

    Raises KeyError, TypeError or ValueError for another record, and ZeroDivisionError if no clip is
    validated.
    """
    hours = float(record["validDurationSecs"]) / 3600.0
    num_validated = int(record["buckets"]["validated"])
    num_test = int(record["buckets"]["test"])
    return ReleaseStatistics(hours, hours / num_validated, num_validated, num_test)


def _read_languages(path: Path, langs: Sequence[str]) -> dict[str, Any]:
    """The records of these languages in the JSON file of a release.

    Raises DataError when the file is another one, or lacks a language.
    """
    try:
        locales = json.loads("\n".join(read_lines(path)))["locales"]
    except (ValueError, TypeError, KeyError) as error:
        found = (
            "not the statistics of a Common Voice release: expected a JSON object with 'locales'"
        )
        to_do = (
            "give the folder of a release, cv-corpus-*.json of github.com/common-voice/cv-dataset, "
            "or a stats.json of `prepare`"
        )
        raise DataError(path, found, to_do) from error
    missing = [lang for lang in langs if lang not in locales]
    if missing:
        found = f"contains no language {', '.join(missing)}"
        raise DataError(path, found, f"found: {', '.join(sorted(locales))}")
    return {lang: locales[lang] for lang in langs}
