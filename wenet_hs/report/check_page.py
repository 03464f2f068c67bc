# SPDX-License-Identifier: Apache-2.0
"""The HTML page of `wenet-hs check`: summary, distributions, and the worst utterances of each kind with their audio."""

from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version
from itertools import zip_longest

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from wenet_hs.corpus.check import FAULT_RULE, KINDS, NO_AUDIO, REMARK_RULE, Checked, seconds_per_unit
from wenet_hs.corpus.letters import Unit
from wenet_hs.report.plots import Line, line_chart
from wenet_hs.report.utterances import embed_audio

MAX_PLAYERS = 40
_AUDIO_BYTES = 10_000_000
_MAX_SHOWN = 10  # utterances per kind
_NUM_BINS = 30
_SHOWN_SHARE = 99.0
"""Percentile at which a histogram ends: with a few very long utterances, all others would be in one bin."""


def build_check_page(
    checked: Checked, *, unit: Unit, facts: Sequence[str], title: str, max_players: int = MAX_PLAYERS
) -> str:
    """The HTML of one self-contained page. Its content security policy forbids network access.

    Args:
        facts: lines above the summary.
        max_players: number of utterances with audio: the worst one of each kind, the second one, and so on.
    """
    clips = {u.key: u for of_set in checked.sets.values() for u in of_set}
    worst = [found[:_MAX_SHOWN] for found in checked.findings.values()]
    unreadable = {found.key for kind in NO_AUDIO for found in checked.findings.get(kind, ())}
    in_turn = dict.fromkeys(found.key for of_rank in zip_longest(*worst) for found in of_rank if found)
    chosen = [key for key in in_turn if key not in unreadable][:max_players]
    faulty, remarked = checked.keys(is_fault=True), checked.keys(is_fault=False)
    durations = {name: [u.duration for u in of_set if u.duration] for name, of_set in checked.sets.items()}
    rates = {name: [seconds_per_unit(u, unit) for u in s if u.duration and u.txt] for name, s in checked.sets.items()}
    values = {
        "title": title,
        "date": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "version": version("wenet_hs"),
        "checked": checked,
        "kinds": KINDS,
        "clips": clips,
        "hours": sum(map(sum, durations.values())) / 3600,
        "sets": [{"name": name} for name in checked.sets],
        "facts": facts,
        "num_faulty": len(faulty),
        "num_remarked": len(remarked - faulty),
        "fault_rule": FAULT_RULE,
        "remark_rule": REMARK_RULE,
        "charts": {
            "Durations": histogram(durations, "seconds"),
            "Speaking rates": histogram(rates, "seconds per unit"),
        },
        "urls": embed_audio(clips, chosen, _AUDIO_BYTES)[0],
        "max_players": max_players,
        "max_shown": _MAX_SHOWN,
    }
    environment = Environment(loader=PackageLoader("wenet_hs.report"), autoescape=True, undefined=StrictUndefined)
    environment.filters |= {"count": "{:,}".format, "first_sentence": lambda text: text.split(". ")[0]}
    return environment.get_template("check.html").render(values)


def histogram(values: dict[str, list[float]], unit: str) -> Markup:
    """Outlines of the histograms of several sets, in % of each; the largest 1 % of the values is not shown."""
    known = [value for of_set in values.values() for value in of_set]
    edges = np.linspace(0.0, np.percentile(known, _SHOWN_SHARE) if known else 1.0, _NUM_BINS + 1)
    lines = []
    for colour, of_set in enumerate(values.values()):
        shares = 100 * np.histogram(of_set, edges)[0] / max(1, len(of_set))
        steps = [(edge, share) for bin_, share in enumerate(shares) for edge in (edges[bin_], edges[bin_ + 1])]
        lines.append(Line(points=[(0.0, 0.0), *steps, (edges[-1], 0.0)] if of_set else [], colour=colour))
    return line_chart(lines, label=f"histogram of {unit}", show="{:g} %".format, unit=unit)
