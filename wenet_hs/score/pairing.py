# SPDX-License-Identifier: Apache-2.0
"""Checks that trainings may be compared seed by seed: what their train.yaml must have in common.

Trainings that started with `--checkpoint` must have started from the same weights, unless their CTC heads differ: then
each has a first model of its own.

a, b = training_of("exp/softmax", settings, provenance), read_training(Path("exp/hsoftmax/test/joint/text"))
check_pair(a, b)
check_system([a, another_seed_of_a])
"""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wenet_hs.config.load import flatten
from wenet_hs.config.yaml_file import read_yaml
from wenet_hs.errors import DataError

_LIST, _LIST_PATHS, _START = "training list", "paths of the training list", "weights of --checkpoint"
_RECORDED = {
    "processor": "processor",
    "number of ranks": "ranks",
    _LIST: "sha256 of training list",
    "units": "sha256 of units.txt",
    "torch": "torch",
    _START: "sha256 of checkpoint",
}
"""What a pair has in common → its key in the provenance."""
CHECKPOINT = "checkpoint"
"""The key of the weights that a training started with, as they were written."""
SAME_COMPUTATION = ("seed", "dtype", "processor", "torch")
"""What also systems with other training data or units have in common."""
_SHA256 = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


@dataclass(frozen=True)
class Training:
    """What two paired trainings must have in common; None where train.yaml does not record it."""

    name: str
    """For messages: a folder or a file."""
    facts: Mapping[str, str | None]
    ctc: str = ""
    """The settings and the tree of the CTC head."""

    @property
    def seed(self) -> str | None:
        return self.facts["seed"]


def command_values(provenance: Mapping[str, Any], *flags: str) -> list[str]:
    """The values of these flags in the recorded command; empty if it cannot be split."""
    try:
        words = shlex.split(str(provenance.get("command", "")))
    except ValueError:  # an unclosed quote in an edited train.yaml
        return []
    values, is_asked = [], False
    for word in words:
        flag, _, value = word.partition("=") if word.startswith("--") else ("", "", word)
        is_asked = flag in flags if flag else is_asked
        values += [value] if is_asked and value else []
    return values


def first_weights(provenance: Mapping[str, Any]) -> list[str]:
    """The `--checkpoint` with which a training started; its last command may be a resume without it. At most one."""
    return [str(provenance[CHECKPOINT])] if CHECKPOINT in provenance else command_values(provenance, "--checkpoint")


def training_of(name: str, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> Training:
    """The facts in the settings and the provenance of a train.yaml, or in a results file."""
    facts = {key: settings.get(key) for key in ("seed", "dtype")}
    facts |= {what: provenance.get(key) for what, key in _RECORDED.items()}
    facts[_LIST_PATHS] = " ".join(command_values(provenance, "--train_data")) or None
    texts = {what: None if value is None else _SHA256.sub(r"\1", str(value)) for what, value in facts.items()}
    ctc = [item for item in flatten(settings).items() if item[0].startswith("ctc_conf.")]
    return Training(name, texts, repr((sorted(ctc), provenance.get("sha256 of ctc_tree.json"))))


def read_training(hypothesis: Path) -> Training | None:
    """The training that decoded MODEL_DIR/<test>/<mode>/text; None if MODEL_DIR has no train.yaml."""
    path = hypothesis.resolve().parents[2] / "train.yaml" if len(hypothesis.resolve().parents) > 2 else Path()
    if not path.is_file():
        return None
    settings = dict(read_yaml(path).values)
    return training_of(str(hypothesis), settings, settings.get("provenance") or {})


def check_pair(a: Training, b: Training, only: Collection[str] | None = None) -> list[str]:
    """What could not be checked, because one of the two does not record it.

    Raises DataError if the two trainings are no pair: other seeds, processors, dtypes, training lists, units, versions
    of torch, numbers of ranks, or weights of `--checkpoint` with equal CTC heads; or a training that ran on more than
    one processor. `only`: the facts to check, instead of all.
    """
    both = {what: (value, b.facts[what]) for what, value in a.facts.items()}
    del both[_LIST if None in both[_LIST] else _LIST_PATHS]  # the paths only where a hash is not recorded
    if a.ctc != b.ctc:
        del both[_START]
    both = {what: values for what, values in both.items() if only is None or what in only}
    faults = [
        f"{what} {of_a!r} and {of_b!r}"
        for what, (of_a, of_b) in both.items()
        if None not in (of_a, of_b) and (of_a != of_b or "; " in str(of_a))
    ]
    if faults:
        raise DataError(f"{a.name} and {b.name}", "; ".join(faults), f"pair trainings with equal {', '.join(both)}")
    return [what for what, values in both.items() if None in values]


def check_system(trainings: Sequence[Training]) -> None:
    """Raise DataError if two trainings of one system have the same seed."""
    first: dict[str, Training] = {}
    for training in trainings:
        other = first.setdefault(training.seed or training.name, training)
        if other is not training:
            found = f"the same seed, {training.seed}, twice in one system"
            raise DataError(f"{other.name} and {training.name}", found, "give each seed once")
