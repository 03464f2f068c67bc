# SPDX-License-Identifier: Apache-2.0
"""The page: sections in the order a reader asks, each number with what it was measured on."""

from dataclasses import dataclass
from html import escape
from importlib.metadata import version

from wenet_hs.report.confusion import confusion_section
from wenet_hs.report.curves import training_section
from wenet_hs.report.errors import errors_section
from wenet_hs.report.figures import NUM_COLOURS
from wenet_hs.report.lengths import lengths_section
from wenet_hs.report.markup import missing
from wenet_hs.report.material import Material
from wenet_hs.report.script import SCRIPT
from wenet_hs.report.speed import speed_section
from wenet_hs.report.style import CSS
from wenet_hs.report.tables import conditions_section, corpora_section
from wenet_hs.report.trees import trees_section
from wenet_hs.report.utterances import AUDIO_MB, MOST, utterances_section
from wenet_hs.score.error_rate import format_interval, percent

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; media-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_LINKS = (
    ("errors", "Error rates"),
    ("corpora", "Corpora"),
    ("speed", "Speed"),
    ("training", "Training"),
    ("tree", "Tree"),
    ("confusions", "Confusions"),
    ("lengths", "Length"),
    ("utterances", "Utterances"),
    ("conditions", "Conditions"),
)


@dataclass(frozen=True, kw_only=True)
class Heading:
    """What stands on the page about the page itself."""

    title: str
    date: str
    command: str
    """What made the page."""


def build_page(material: Material, heading: Heading, *, most_utterances: int = MOST, audio_mb: float = AUDIO_MB) -> str:
    """The HTML of one self-contained page, whose own policy forbids the network.

    Args:
        most_utterances: how many utterances can be browsed, the worst ones.
        audio_mb: room for their audio, in megabytes of the page; 0 for none.
    """
    sections = (
        errors_section(material),
        corpora_section(material),
        speed_section(material),
        training_section(material),
        trees_section(material),
        confusion_section(material),
        lengths_section(material),
        utterances_section(material, most=most_utterances, audio_mb=audio_mb),
        conditions_section(material, command=heading.command, date=heading.date),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(heading.title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + f"{_opening(material, heading)}\n<main>\n"
        + "\n".join(sections)
        + f"\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _opening(material: Material, heading: Heading) -> str:
    experiments = material.experiments
    names = ", ".join(f"{experiment.name} ({experiment.head} head)" for experiment in experiments)
    note = _absent(material) + _stale(material)
    links = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name in _LINKS)
    return (
        f'<header><div class="top"><h1>{escape(heading.title)}</h1>'
        '<button type="button" id="theme" class="js">Theme: auto</button></div>\n'
        f'<p class="quiet">{escape(heading.date)} · wenet_hs {escape(version("wenet_hs"))} · {escape(names)}'
        f'{material.said}</p>\n<div class="cards">{_cards(material)}</div>\n{note}\n'
        f'<nav aria-label="Sections">{links}</nav></header>'
    )


def _absent(material: Material) -> str:
    """What the folders lack, each thing once with everybody who lacks it; "" where nothing is missing."""
    lacking: dict[str, list[str]] = {}
    for experiment in material.experiments:
        for what in experiment.absent:
            lacking.setdefault(what, []).append(experiment.name)
    told = [
        f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} no {what}" for what, names in lacking.items()
    ]
    return missing(f"Not on this page: {'; '.join(told)}.") if told else ""


def _stale(material: Material) -> str:
    """A line for each scoring that is older than the texts, the speed and the confidences beside it."""
    return "".join(missing(f"{found.name}, {phrase}.") for found in material.experiments for phrase in found.stale)


def _cards(material: Material) -> str:
    return "".join(
        f'<div class="card" style="border-left-color: var(--c{place % NUM_COLOURS})">{escape(experiment.name)}'
        f"<strong>{percent(report.macro.rate)} %{material.said}</strong>"
        f"{report.rules.metric.upper()}, macro average {format_interval(report.macro.interval)}"
        f'<div class="quiet">{escape(material.mode or "")}</div></div>'
        for place, experiment, report in material.shown
    )
