# SPDX-License-Identifier: Apache-2.0
"""The speed of decoding: of each mode, by language, by part, and what it was measured under."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.report.collect import ExperimentResults
from wenet_hs.report.markup import missing, number, plain_table, section, show_setting
from wenet_hs.report.material import Material

_ALWAYS = "beam_size"  # the option that everybody asks for first, said at its default too
_WORDS = {
    "num_threads": "threads",
    "num_ranks": "processes",
    "max_segment_s": "seconds of a segment at most",
    "nbest": "n-best",
}


def speed_section(material: Material) -> str:
    """Seconds of speech, of decoding and their ratio; without rtf.json it says so."""
    experiments, said = material.experiments, material.said
    caption = f"Real-time factor{said}: seconds of decoding for a second of speech. Under 1 is faster than real time."
    found = speed_table(experiments, caption=caption) or missing("No speed: no experiment has an rtf.json.")
    return section(
        "speed", "Decoding speed", found, _speed_by_language(experiments, said), _parts_table(experiments, said)
    )


def speed_table(experiments: Sequence[ExperimentResults], *, caption: str) -> str:
    """A row for each experiment and mode; "" where no experiment has an rtf.json.

    Conditions that differ are columns; those of all experiments are one line below.
    """
    measured = [experiment for experiment in experiments if experiment.speeds]
    conditions = [experiment.speed_conditions for experiment in measured]
    names = list(dict.fromkeys(name for found in conditions for name in found))
    differing = [name for name in names if len({show_setting(found.get(name)) for found in conditions}) > 1]
    rows = [
        [experiment.name, mode, number(speed.get("audio_seconds"), 1), number(speed.get("wall_seconds"), 1)]
        + [number(speed.get("rtf"), 4)]
        + [show_setting(experiment.speed_conditions.get(name)) for name in differing]
        for experiment in measured
        for mode, speed in experiment.speeds.items()
    ]
    if not rows:
        return ""
    header = ["experiment", "mode", "speech, s", "decoding, s", "RTF", *map(_word, differing)]
    common = {name: conditions[0][name] for name in names if name not in differing}
    return f"{plain_table(header, rows, caption=caption)}\n{_common_line(common)}"


def _common_line(common: Mapping[str, Any]) -> str:
    """What is the same in all rows, without the options that nobody set; "" for nothing."""
    defaults: dict[str, Any] = {"lm": None, **asdict(DecodeOptions())}
    said = [
        f"{_word(name)} {show_setting(value)}"
        for name, value in common.items()
        if name == _ALWAYS or name not in defaults or value != defaults[name]
    ]
    rest = "; options at their defaults left out" if len(said) < len(common) else ""
    return f'<p class="quiet">In all of them: {escape(", ".join(said))}{rest}.</p>' if said else ""


def _word(name: str) -> str:
    return _WORDS.get(name, name.replace("_", " "))


def _speed_by_language(experiments: Sequence[ExperimentResults], said: str) -> str:
    """The form of the paper's Table 6."""
    found = [
        (experiment.name, mode, speed["sum_rtf_by_lang"])
        for experiment in experiments
        for mode, speed in experiment.speeds.items()
        if isinstance(speed.get("sum_rtf_by_lang"), dict)
    ]
    langs = sorted({lang for _, _, by_lang in found for lang in by_lang})
    rows = [[name, mode, *(number(by_lang.get(lang), 4) for lang in langs)] for name, mode, by_lang in found]
    caption = f"Real-time factor by language{said}: each clip takes an equal part of its batch's time"
    return plain_table(["experiment", "mode", *langs], rows, caption=caption) if rows else ""


def _parts_table(experiments: Sequence[ExperimentResults], said: str) -> str:
    parts = list(dict.fromkeys(part for experiment in experiments for part in experiment.speed_parts))
    rows = [
        [experiment.name, *(number(experiment.speed_parts.get(part), 2) for part in parts)]
        for experiment in experiments
        if experiment.speed_parts
    ]
    names = ["experiment", *(part.replace("_", " ") for part in parts)]
    return plain_table(names, rows, caption=f"Seconds of each part of the decoding{said}") if rows else ""
