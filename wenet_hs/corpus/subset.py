# SPDX-License-Identifier: Apache-2.0
"""How many hours of each language to train on (section 3.1 of the paper), and the statistics of
Common Voice.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wenet_hs.base.files import read_lines
from wenet_hs.tree.errors import ConfigError, DataError


def sampling_ratios(
    hours: Mapping[str, float], *, alpha: float = 0.5, ratio: float = 0.082
) -> dict[str, float]:
    """λ_i = p_i^(α-1) / Σ_j p_j^α · λ, where p_i is a language's share of all hours and λ is
    `ratio`.

    So Σ λ_i · hours_i = λ · Σ hours_i. A small language may get λ_i > 1; it is cut to 1, for there
    is no more of it, and what it cannot give is not taken from others: the sum is then smaller.

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
    """The λ that keeps `wanted_hours` of `total_hours`. Raises ConfigError when there is less."""
    if not 0.0 < wanted_hours <= total_hours:
        most = (
            math.floor(100 * total_hours) / 100
        )  # rounded down, so that the command accepts this number
        found = f"must be above 0 and at most {most:.2f}, the hours of all languages"
        raise ConfigError(f"--hours {wanted_hours:g}", found)
    return wanted_hours / total_hours


def read_statistics(path: Path, langs: Sequence[str]) -> dict[str, tuple[float, float, int, int]]:
    """Of each language in the statistics of a Common Voice release: hours that are validated, mean
    hours of a clip, and the numbers of clips that are validated and that are in the release's own
    test set.

    Raises DataError when the file is another one, or lacks a language.
    """
    locales = _read_languages(path, "locales", langs)
    statistics = {}
    for lang in langs:
        try:
            hours = float(locales[lang]["validDurationSecs"]) / 3600.0
            num_validated, num_released = (
                int(locales[lang]["buckets"][name]) for name in ("validated", "test")
            )
            statistics[lang] = hours, hours / num_validated, num_validated, num_released
        except (ValueError, TypeError, KeyError, ZeroDivisionError) as error:
            found = f"language {lang}: {type(error).__name__} ({error})"
            numbers = "validDurationSecs, buckets.validated and buckets.test"
            raise DataError(
                path, found, f"{numbers} must be numbers, and a clip must be validated"
            ) from error
    return statistics


def _read_languages(path: Path, name: str, langs: Sequence[str]) -> dict[str, Any]:
    """The records of these languages in the object `name` of a JSON file."""
    try:
        found = json.loads("\n".join(read_lines(path)))[name]
    except (ValueError, TypeError, KeyError) as error:
        fault = (
            f"not the statistics of a Common Voice release: expected a JSON object with '{name}'"
        )
        files = (
            "cv-corpus-*.json of github.com/common-voice/cv-dataset, or a stats.json of `prepare`"
        )
        raise DataError(path, fault, f"give the folder of a release, {files}") from error
    missing = [lang for lang in langs if lang not in found]
    if missing:
        raise DataError(
            path, f"contains no language {', '.join(missing)}", f"found: {', '.join(sorted(found))}"
        )
    return {lang: found[lang] for lang in langs}
