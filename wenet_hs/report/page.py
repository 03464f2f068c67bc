# SPDX-License-Identifier: Apache-2.0
"""The page: sections in the order a reader asks, each number with what it was measured on."""

from collections.abc import Callable, Sequence
from html import escape
from importlib.metadata import version

from wenet_hs.report.collect import Experiment
from wenet_hs.report.figures import NUM_COLOURS, Dot, Line, interval_chart, line_chart
from wenet_hs.report.style import CSS
from wenet_hs.report.tables import (
    conditions_table,
    error_table,
    provenance_table,
    settings_table,
    speed_table,
    training_table,
)
from wenet_hs.report.utterances import MOST, worst_utterances
from wenet_hs.score.table import format_interval, percent
from wenet_hs.tree.nary import NaryTree
from wenet_hs.tree.tree import Tree

MAX_LEAVES = 60
SIMULATED = ' <span class="simulated">(simulated speech)</span>'


def _general(value: float) -> str:
    return f"{value:g}"


def _per_cent(value: float) -> str:
    return f"{100 * value:g} %"


CURVES: tuple[
    tuple[str, str, Callable[[float], str], bool], ...
] = (  # metric, caption, how a value is written, log axis
    ("loss", "Loss, nats a target", _general, True),
    ("loss_att", "Attention loss, nats a target", _general, True),
    ("loss_ctc", "CTC loss, nats a target", _general, True),
    ("bits_per_unit", "Bits a unit of the attention decoder, without label smoothing", _general, True),
    ("accuracy", "Attention accuracy, teacher-forced", _per_cent, False),
    ("lr", "Learning rate", _general, False),
)


def build_page(
    experiments: Sequence[Experiment], *, title: str, date: str, command: str, simulated: bool = False
) -> str:
    """The HTML of one self-contained page.

    Args:
      title, date, command: as they are to stand on the page; `command` is what made it.
      simulated: say "simulated speech" beside every result.
    """
    said = SIMULATED if simulated else ""
    sections = (
        _opening(experiments, title, date, said),
        _errors(experiments, said),
        _speed(experiments, said),
        _training(experiments, said),
        _trees(experiments),
        _utterances(experiments, said),
        _conditions(experiments, command, said),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + "\n</body>\n</html>\n"
    )


def _opening(experiments: Sequence[Experiment], title: str, date: str, said: str) -> str:
    names = ", ".join(f"{experiment.name} ({experiment.head} head)" for experiment in experiments)
    absent = [f"{experiment.name} has no {what}" for experiment in experiments for what in experiment.absent]
    cards = "".join(_card(experiment, i, said) for i, experiment in enumerate(experiments) if experiment.best_mode)
    note = f'<p class="quiet">Not on this page: {escape("; ".join(absent))}.</p>' if absent else ""
    return (
        f"<h1>{escape(title)}</h1>\n"
        f'<p class="quiet">{escape(date)} · wenet_hs {escape(version("wenet_hs"))} · {escape(names)}{said}</p>\n'
        f'<div class="cards">{cards}</div>\n{note}'
    )


def _card(experiment: Experiment, index: int, said: str) -> str:
    mode = experiment.best_mode or ""
    report = experiment.scores[mode]
    return (
        f'<div class="card" style="border-left-color: var(--c{index % NUM_COLOURS})">{escape(experiment.name)}'
        f"<strong>{percent(report.macro.rate)} %{said}</strong>"
        f"{report.rules.metric.upper()}, macro average {format_interval(report.macro.interval)}"
        f'<div class="quiet">{escape(mode)}, its best mode</div></div>'
    )


def _errors(experiments: Sequence[Experiment], said: str) -> str:
    scored = [experiment for experiment in experiments if experiment.scores]
    if not scored:
        return ""
    metrics = sorted({report.rules.metric.upper() for e in scored for report in e.scores.values()})
    caption = (
        f"{' and '.join(metrics)} in %{said}, below it the 95 % interval of a bootstrap over utterances; "
        "in bold the lower one of a mode. Macro: mean of the languages; micro: all utterances pooled."
    )
    figure = interval_chart(_dot_rows(experiments), label="Error rates of the best modes by language")
    modes = ", ".join(f"{e.name}: {e.best_mode}" for e in scored if e.best_mode)
    below = f"{' and '.join(metrics)} by language{said} with 95 % intervals, best mode ({escape(modes)})."
    return (
        f"<h2>Error rates</h2>\n{error_table(scored, caption=caption)}\n"
        f'<figure class="chart wide">{_keys(experiments)}{figure}<figcaption>{below}</figcaption></figure>'
    )


def _dot_rows(experiments: Sequence[Experiment]) -> list[tuple[str, list[Dot]]]:
    rows: dict[str, list[Dot]] = {}
    for index, experiment in enumerate(experiments):
        if experiment.best_mode is None:
            continue
        report = experiment.scores[experiment.best_mode]
        facts = {lang: (score.rate, score.interval) for lang, score in sorted(report.languages.items())}
        for lang, (rate, interval) in [*facts.items(), ("macro average", (report.macro.rate, report.macro.interval))]:
            if rate is not None:
                low, high = interval or (rate, rate)
                label = f"{experiment.name}, {lang}: {percent(rate)} % {format_interval(interval)}"
                rows.setdefault(lang, []).append(Dot(rate=rate, low=low, high=high, colour=index, label=label))
    return sorted(rows.items(), key=lambda row: (row[0] == "macro average", row[0]))


def _keys(experiments: Sequence[Experiment]) -> str:
    keys = (
        f'<span class="key c{index % NUM_COLOURS}"><span>{escape(experiment.name)}</span></span>'
        for index, experiment in enumerate(experiments)
    )
    return f"<p>{''.join(keys)}</p>"


def _speed(experiments: Sequence[Experiment], said: str) -> str:
    caption = f"Real-time factor{said}: seconds of decoding for a second of speech; under 1 is faster than real time."
    table = speed_table(experiments, caption=caption)
    return f"<h2>Decoding speed</h2>\n{table}" if table else ""


def _training(experiments: Sequence[Experiment], said: str) -> str:
    figures = []
    for metric, caption, show, decades in CURVES:
        lines = [line for index, experiment in enumerate(experiments) for line in _lines(experiment, index, metric)]
        chart = line_chart(lines, label=f"{caption} over training steps", show=show, decades=decades)
        if chart:
            figures.append(f"<figure>{chart}<figcaption>{caption}{said}</figcaption></figure>")
    table = training_table(experiments, caption=f"Training{said}")
    if not (figures or table):
        return ""
    key = '<p class="quiet">Over training steps. Thick: validation; thin and pale: training.</p>'
    return (
        f"<h2>Training</h2>\n{table}\n{_keys(experiments)}{key}\n"
        f'<div class="charts chart">{"".join(figures)}</div>\n'
        + settings_table(experiments, caption="Settings in which the experiments differ")
    )


def _lines(experiment: Experiment, index: int, metric: str) -> list[Line]:
    train, valid = (_points(experiment, kind, metric) for kind in ("train", "valid"))
    return [Line(points=train, colour=index, faint=bool(valid)), Line(points=valid, colour=index)]


def _points(experiment: Experiment, kind: str, metric: str) -> list[tuple[float, float]]:
    return [(record["step"], record[metric]) for record in experiment.curves.get(kind, ()) if metric in record]


def _trees(experiments: Sequence[Experiment]) -> str:
    owners: dict[Tree | NaryTree, list[str]] = {}
    for experiment in experiments:
        if experiment.tree is not None:
            owners.setdefault(experiment.tree, []).append(experiment.name)
    drawn = [_tree(tree, ", ".join(names)) for tree, names in owners.items()]
    return "<h2>Tree of the output layer</h2>\n" + "\n".join(drawn) if drawn else ""


def _tree(tree: Tree | NaryTree, names: str) -> str:
    from wenet_hs.tree.draw import tree_svg  # drawing is asked for by this page alone

    part = f", its {MAX_LEAVES} most probable branches drawn" if tree.num_units > MAX_LEAVES else ""
    caption = (
        f"{names}: {tree.kind}, {tree.num_units:,} units{part}; depth {tree.depth}, mean code length "
        f"{tree.mean_code_length():.2f} bits, entropy of the units {tree.entropy():.2f} bits."
    )
    svg = tree_svg(tree, max_leaves=MAX_LEAVES)
    return (
        f'<figure><figcaption>{escape(caption)}</figcaption><div class="tree">{svg[svg.index("<svg") :]}</div></figure>'
    )


def _utterances(experiments: Sequence[Experiment], said: str) -> str:
    blocks = []
    for experiment in experiments:
        if experiment.best_mode is None:
            continue
        report = experiment.scores[experiment.best_mode]
        wrong = sum(utterance.counts.errors > 0 for utterance in report.utterances.values())
        summary = (
            f"{experiment.name}, {experiment.best_mode}: the {min(MOST, wrong)} worst of {len(report.utterances):,} "
            f"utterances, of which {wrong:,} have an error"
        )
        blocks.append(f"<details><summary>{escape(summary)}{said}</summary>{worst_utterances(report)}</details>")
    if not blocks:
        return ""
    legend = ", ".join(
        f'<span class="legend {kind}">{what}</span>'
        for kind, what in (("S", "substituted"), ("D", "deleted"), ("I", "inserted"))
    )
    blocks[0] = blocks[0].replace("<details>", "<details open>", 1)
    return f"<h2>Utterances, worst first</h2>\n<p>Above the reference, below what was recognised: {legend}.</p>\n" + (
        "\n".join(blocks)
    )


def _conditions(experiments: Sequence[Experiment], command: str, said: str) -> str:
    scored = [experiment for experiment in experiments if experiment.scores]
    scores = conditions_table(scored, caption=f"What each error rate was counted on{said}") if scored else ""
    provenance = provenance_table(experiments, caption="Where each model comes from")
    return f"<h2>Conditions</h2>\n{scores}\n{provenance}\n<p>This page: <code>{escape(command)}</code></p>"
