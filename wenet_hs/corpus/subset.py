# SPDX-License-Identifier: Apache-2.0
"""How many hours of each language to train on: the smoothed downsampling of the paper, section 3.1."""

import math
from collections.abc import Mapping

from wenet_hs.errors import ConfigError


def sampling_ratios(hours: Mapping[str, float], *, alpha: float = 0.5, ratio: float = 0.082) -> dict[str, float]:
    """λ_i = p_i^(α-1) / Σ_j p_j^α · λ, where p_i is a language's share of all hours and λ is `ratio`.

    So Σ λ_i · hours_i = λ · Σ hours_i. A small language may get λ_i > 1; it is cut to 1, for there is no more of it,
    and what it cannot give is not taken from others: the sum is then smaller.

    Args:
        hours: hours of each language, > 0.
        alpha: 1 keeps the proportions of the languages, 0 gives each as many hours; in [0, 1].
        ratio: λ, the share of all hours to keep; in (0, 1].
    Raises: ConfigError when alpha, ratio or the hours are out of range.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"--alpha {alpha:g}: must be between 0 and 1; the paper uses 0.5")
    if not 0.0 < ratio <= 1.0:
        raise ConfigError(f"--ratio {ratio:g}: must be above 0 and at most 1; the paper uses 0.082")
    for lang, duration in hours.items():
        if not (math.isfinite(duration) and duration > 0.0):
            raise ConfigError(f"language {lang}: {duration:g} hours of audio; leave it out of --langs")
    total = sum(hours.values())
    shares = {lang: duration / total for lang, duration in hours.items()}
    norm = sum(share**alpha for share in shares.values())
    return {lang: min(1.0, share ** (alpha - 1.0) / norm * ratio) for lang, share in shares.items()}


def hours_to_keep(hours: Mapping[str, float], alpha: float = 0.5, ratio: float = 0.082) -> dict[str, float]:
    """Hours of each language after downsampling, λ_i · hours_i; see `sampling_ratios`."""
    ratios = sampling_ratios(hours, alpha=alpha, ratio=ratio)
    return {lang: ratios[lang] * duration for lang, duration in hours.items()}


def ratio_for(total_hours: float, wanted_hours: float) -> float:
    """The λ that keeps `wanted_hours` of `total_hours`. Raises ConfigError when there is less."""
    if not 0.0 < wanted_hours <= total_hours:
        most = math.floor(100 * total_hours) / 100  # rounded down, so that the command accepts this number
        raise ConfigError(
            f"--hours {wanted_hours:g}: must be above 0 and at most {most:.2f}, the hours of all languages"
        )
    return wanted_hours / total_hours
