# SPDX-License-Identifier: Apache-2.0
"""Checks that trainings may be compared seed by seed, by their settings and run records.

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
_FIRST_WEIGHTS = "weights of --checkpoint"
SAME_COMPUTATION = ("seed", "dtype", "processor", "torch")
"""What also systems with other training data or units have in common."""
_SHOWN_DIGITS = 12
"""Of a SHA-256 in a message."""


@dataclass(frozen=True)
class TrainingFacts:
    """What two paired trainings must have in common."""

    name: str
    """For messages: a folder or a file."""
    facts: Mapping[str, str | None]
    """Name of a fact → its text; None if it is not recorded."""
    ctc: str = ""
    """The settings and the tree of the CTC head."""
    changed: frozenset[str] = frozenset()
    """The facts that were not the same in all starts of this training, such as its processor."""

    @property
    def seed(self) -> str | None:
        return self.facts["seed"]


def training_of(name: str, settings: Mapping[str, Any], run: RunRecord | None) -> TrainingFacts:
    """The facts of a training that pairs are compared by.

    Args:
        name: for messages.
        settings: of train.yaml, nested or by dotted name.
        run: None if there is no run record; its facts are then not recorded.
    """
    run = run or RunRecord()
    # Each has several values if it changed between the starts of the training.
    values_of_starts = {
        "processor": run.processors,
        "number of ranks": [str(number) for number in run.rank_numbers],
        "torch": run.torch_versions,
    }
    list_hashes = [sha256[:_SHOWN_DIGITS] for sha256 in run.lists.train_sums]
    texts = {
        "seed": _text_of(settings.get("seed")),
        "dtype": _text_of(settings.get("dtype")),
        "processor": "; ".join(values_of_starts["processor"]),
        "number of ranks": "; ".join(values_of_starts["number of ranks"]),
        _LIST: " ".join(list_hashes),
        "units": run.files.get("units.txt", "")[:_SHOWN_DIGITS],
        "torch": "; ".join(values_of_starts["torch"]),
        _FIRST_WEIGHTS: _describe_first_weights(run),
        _LIST_PATHS: " ".join(run.lists.train_paths),
    }
    ctc_settings = [
        (name, value) for name, value in flatten(settings).items() if name.startswith("ctc_conf.")
    ]
    return TrainingFacts(
        name=name,
        facts={fact: text or None for fact, text in texts.items()},  # an empty text: not recorded
        ctc=repr((sorted(ctc_settings), run.files.get("ctc_tree.json"))),
        changed=frozenset(fact for fact, values in values_of_starts.items() if len(values) > 1),
    )


def _text_of(value: object) -> str | None:
    """The value as text; None stays None."""
    return None if value is None else str(value)


def _describe_first_weights(run: RunRecord) -> str | None:
    """The first weights of a training: the beginning of their SHA-256, or `none` if random.

    None if they are not recorded.
    """
    weights = run.first_weights
    if weights is None:
        return None
    if weights.kind == "random":
        return "none"
    return None if weights.sha256 is None else weights.sha256[:_SHOWN_DIGITS]


def check_pair(
    a: TrainingFacts, b: TrainingFacts, only: Collection[str] | None = None
) -> list[str]:
    """Check that two trainings may be compared as a pair.

    They must have equal seeds, dtypes, processors, numbers of ranks, training lists, units and
    versions of torch, and started from equal weights if their CTC heads are equal. No fact may have
    changed between the starts of a training, as its processor can.

    Args:
        only: the facts to check; None: all.
    Returns:
        The facts that could not be checked, because one of the two does not record them.
    Raises:
        DataError: the trainings are no pair. It names all facts that differ.
    """
    facts = _facts_of_pair(a, b)
    if only is not None:
        facts = [fact for fact in facts if fact in only]
    differing = [fact for fact in facts if _differs(fact, a, b)]
    if differing:
        faults = [f"{fact} {a.facts[fact]!r} and {b.facts[fact]!r}" for fact in differing]
        to_do = f"pair trainings with equal {', '.join(facts)}"
        raise DataError(f"{a.name} and {b.name}", "; ".join(faults), to_do)
    return [fact for fact in facts if not _is_known(fact, a, b)]


def _facts_of_pair(a: TrainingFacts, b: TrainingFacts) -> list[str]:
    """The facts that a pair must have in common. Two of them depend on what is recorded:

    - The training list is compared by its hash if both have recorded it, otherwise by its paths.
    - The first weights are compared only if the CTC heads are equal. With different heads each
      training has first weights of its own.
    """
    is_hash_known = _is_known(_LIST, a, b)
    left_out = [_LIST_PATHS if is_hash_known else _LIST]
    if a.ctc != b.ctc:
        left_out.append(_FIRST_WEIGHTS)
    return [fact for fact in a.facts if fact not in left_out]


def _is_known(fact: str, a: TrainingFacts, b: TrainingFacts) -> bool:
    """Whether both trainings have recorded a fact."""
    return a.facts[fact] is not None and b.facts[fact] is not None


def _differs(fact: str, a: TrainingFacts, b: TrainingFacts) -> bool:
    """Whether both trainings have recorded a fact, but not the same single value in all starts.

    A fact that changed between the starts of a training differs in any case. Its text has all its
    values: if the texts are equal, it changed in both or in none, so `a.changed` is enough.
    """
    is_common_value = a.facts[fact] == b.facts[fact] and fact not in a.changed
    return _is_known(fact, a, b) and not is_common_value


def check_system(trainings: Sequence[TrainingFacts]) -> None:
    """Raise DataError if two trainings of one system have the same seed.

    Trainings without a recorded seed are told apart by their names.
    """
    first_of_seed: dict[str, TrainingFacts] = {}
    for training in trainings:
        first = first_of_seed.setdefault(training.seed or training.name, training)
        if first is not training:
            fault = f"the same seed, {training.seed}, twice in one system"
            raise DataError(f"{first.name} and {training.name}", fault, "give each seed once")
