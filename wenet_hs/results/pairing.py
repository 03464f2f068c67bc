# SPDX-License-Identifier: Apache-2.0
"""Checks that trainings may be compared seed by seed: what their settings and run records must have
in common.

Trainings that started with `--checkpoint` must have started from the same weights, unless their CTC
heads differ: then each has a first model of its own.

a = training_of("exp/softmax", settings, run)
b = training_of("exp/hsoftmax", other_settings, other_run)
check_pair(a, b)
check_system([a, another_seed_of_a])
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wenet_hs.config.load import flatten
from wenet_hs.runs.record import RunRecord
from wenet_hs.tree.errors import DataError

_LIST = "training list"
_LIST_PATHS = "paths of the training list"
_START = "weights of --checkpoint"
SAME_COMPUTATION = ("seed", "dtype", "processor", "torch")
"""What also systems with other training data or units have in common."""
_SHOWN_DIGITS = 12
"""Of a SHA-256 in a message."""


@dataclass(frozen=True)
class TrainingFacts:
    """What two paired trainings must have in common; None where it is not recorded."""

    name: str
    """For messages: a folder or a file."""
    facts: Mapping[str, str | None]
    ctc: str = ""
    """The settings and the tree of the CTC head."""
    changed: frozenset[str] = frozenset()
    """The facts that were not the same in all starts of this training, such as its processor."""

    @property
    def seed(self) -> str | None:
        return self.facts["seed"]


def training_of(name: str, settings: Mapping[str, Any], run: RunRecord | None) -> TrainingFacts:
    """The facts in the settings, nested or by dotted name, and in the run record of a training."""
    run = run or RunRecord()
    processors = run.processors
    rank_numbers = [str(number) for number in run.rank_numbers]
    texts = {
        "seed": _text_of(settings.get("seed")),
        "dtype": _text_of(settings.get("dtype")),
        "processor": "; ".join(processors),
        "number of ranks": "; ".join(rank_numbers),
        _LIST: " ".join(sha256[:_SHOWN_DIGITS] for sha256 in run.lists.train_sums),
        "units": run.files.get("units.txt", "")[:_SHOWN_DIGITS],
        "torch": "; ".join(run.torch_versions),
        _START: _describe_first_weights(run),
        _LIST_PATHS: " ".join(run.lists.train_paths),
    }
    several = {
        "processor": processors,
        "number of ranks": rank_numbers,
        "torch": run.torch_versions,
    }
    settings_of_ctc = [
        item for item in flatten(settings).items() if item[0].startswith("ctc_conf.")
    ]
    return TrainingFacts(
        name=name,
        facts={what: text or None for what, text in texts.items()},
        ctc=repr((sorted(settings_of_ctc), run.files.get("ctc_tree.json"))),
        changed=frozenset(what for what, values in several.items() if len(values) > 1),
    )


def _text_of(value: object) -> str | None:
    return None if value is None else str(value)


def _describe_first_weights(run: RunRecord) -> str | None:
    """The beginning of their SHA-256, or `none` for random ones; None if it is not recorded."""
    weights = run.first_weights
    if weights is None:
        return None
    if weights.kind == "random":
        return "none"
    return None if weights.sha256 is None else weights.sha256[:_SHOWN_DIGITS]


def check_pair(
    a: TrainingFacts, b: TrainingFacts, only: Collection[str] | None = None
) -> list[str]:
    """What could not be checked, because one of the two does not record it.

    Raises DataError if the two trainings are no pair: other seeds, processors, dtypes, training
    lists, units, versions of torch, numbers of ranks, or weights of `--checkpoint` with equal CTC
    heads; or a training that ran on more than one processor. `only`: the facts to check, instead of
    all.
    """
    both = {what: (value, b.facts[what]) for what, value in a.facts.items()}
    del both[
        _LIST if None in both[_LIST] else _LIST_PATHS
    ]  # the paths only where a hash is not recorded
    if a.ctc != b.ctc:
        del both[_START]
    both = {what: values for what, values in both.items() if only is None or what in only}
    faults = []
    for what, (of_a, of_b) in both.items():
        is_known = of_a is not None and of_b is not None
        is_the_same = of_a == of_b and what not in a.changed
        if is_known and not is_the_same:
            faults.append(f"{what} {of_a!r} and {of_b!r}")
    if faults:
        raise DataError(
            f"{a.name} and {b.name}",
            "; ".join(faults),
            f"pair trainings with equal {', '.join(both)}",
        )
    return [what for what, values in both.items() if None in values]


def check_system(trainings: Sequence[TrainingFacts]) -> None:
    """Raise DataError if two trainings of one system have the same seed."""
    first: dict[str, TrainingFacts] = {}
    for training in trainings:
        other = first.setdefault(training.seed or training.name, training)
        if other is not training:
            found = f"the same seed, {training.seed}, twice in one system"
            raise DataError(f"{other.name} and {training.name}", found, "give each seed once")
