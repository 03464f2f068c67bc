# SPDX-License-Identifier: Apache-2.0
"""The sections that are tables alone: the corpora, the conditions of every number."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from wenet_hs.report.collect import ExperimentResults
from wenet_hs.report.inputs import inputs_table
from wenet_hs.report.markup import missing, number, plain_table, section
from wenet_hs.report.material import Material
from wenet_hs.report.utterances import letters
from wenet_hs.score.bootstrap import SEED
from wenet_hs.score.error_rate import UNDEFINED

_SPLITS = ("train", "dev", "test")
_MANY = 20  # languages; a longer table is folded
_DECIMALS = {"hours": 4, "utterances": 0, "speakers": 0}
_HOURS = (("hours_before", "hours released", 2), ("lambda", "λ", 4), ("hours_wanted", "λ × hours", 2))


# ---- corpora


def corpora_section(material: Material) -> str:
    """A table for each stats.json; without one it says so."""
    tables = [_corpus(path, stats, material.said) for path, stats in material.stats.items()]
    if not any(tables):
        text = "No statistics: no stats.json beside the lists of the training; give --stats."
        return section("corpora", "Statistics of the corpora", missing(text))
    return section("corpora", "Statistics of the corpora", *tables)


def _corpus(path: Path, stats: Mapping[str, Any], said: str) -> str:
    """Hours, utterances and speakers of each language and split; for a sampled corpus the paper's λ."""
    langs = stats.get("langs")
    if not isinstance(langs, dict) or not langs or not all(isinstance(found, dict) for found in langs.values()):
        return missing(f"{path}: no languages in it; run the stage that prepares the data again.")
    total = stats.get("total")
    sampled = [(key, name, digits) for key, name, digits in _HOURS if any(key in found for found in langs.values())]
    header = ["language", *(heading for _, heading, _ in sampled)]
    header += [f"{split} {what}" for what in _DECIMALS for split in _SPLITS]
    rows = [_corpus_row(lang, found, sampled) for lang, found in sorted(langs.items())]
    foot = [_corpus_row("all", total, sampled)] if isinstance(total, dict) else []
    licence = f" Licence: {escape(str(stats['licence']))}." if "licence" in stats else ""
    name = str(stats.get("corpus", path))
    said = "" if "simulated" in name else said
    caption = f"{escape(name)}{said}, {len(langs):,} languages.{licence}"
    made = plain_table(header, rows, foot=foot, caption=caption)
    heading = f"{name}, {len(langs):,} languages"
    folded = f"<details><summary>{escape(heading)}{said}</summary>{made}</details>"
    return folded if len(langs) > _MANY else made


def _corpus_row(lang: str, found: Mapping[str, Any], sampled: Sequence[tuple[str, str, int]]) -> list[str]:
    row = [lang, *(number(found.get(key), digits) if key in found else "" for key, _, digits in sampled)]
    for what, digits in _DECIMALS.items():
        counts = found.get(what)
        counts = counts if isinstance(counts, dict) else {}
        row += [number(counts.get(split), digits) for split in _SPLITS]
    return row


# ---- conditions


def conditions_section(material: Material, *, command: str, date: str) -> str:
    """What every number was made from and by."""
    experiments = material.experiments
    scored = [experiment for experiment in experiments if experiment.scores]
    return section(
        "conditions",
        "Conditions",
        f"<p>{escape(_speech(material))}</p>",
        scores_table(scored, caption=f"What each error rate was counted on{material.said}") if scored else "",
        provenance_table(experiments, caption="Where each model comes from")
        or missing("No provenance: no train.yaml."),
        f"<p>This page: {escape(date)}, wenet_hs {escape(version('wenet_hs'))}, <code>{escape(command)}</code>. "
        f"Intervals: 95 % of a bootstrap, seed {SEED}.</p>",
        inputs_table(material),
    )


def _speech(material: Material) -> str:
    known = {True: "Speech: simulated.", False: "Speech: not marked as simulated by its stats.json."}
    if material.simulated is None:
        return "Speech: whether it is simulated is not known, for no stats.json was found; give --stats."
    return known[material.simulated]


def scores_table(experiments: Sequence[ExperimentResults], *, caption: str) -> str:
    """Signature, counts, resamples and missing hypotheses of each score."""
    rows = [
        [experiment.name, mode, report.signature, letters(report.micro.counts)]
        + [f"{report.num_resamples:,}", f"{len(report.missing):,}"]
        for experiment in experiments
        for mode, report in experiment.scores.items()
    ]
    names = ["experiment", "mode", "signature", "counts", "resamples", "missing"]
    return plain_table(names, rows, caption=caption)


def provenance_table(experiments: Sequence[ExperimentResults], *, caption: str) -> str:
    """Command, commit, versions, machine, seed and hashes of each training; "" where none is known."""
    facts = [
        experiment.provenance | ({"seed": experiment.settings["seed"]} if "seed" in experiment.settings else {})
        for experiment in experiments
    ]
    keys = list(dict.fromkeys(key for found in facts for key in found))
    rows = [[key, *(found.get(key, UNDEFINED) for found in facts)] for key in keys]
    names = ["training", *(experiment.name for experiment in experiments)]
    return plain_table(names, rows, caption=caption) if rows else ""
