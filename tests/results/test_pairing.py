# SPDX-License-Identifier: Apache-2.0
"""Which trainings are pairs: seed, processor, dtype, training list, units and ranks."""

from pathlib import Path
from typing import Any

import pytest

from wenet_hs.results.experiment import read_training
from wenet_hs.results.pairing import TrainingFacts, check_pair, check_system, training_of
from wenet_hs.runs.record import DataFile, DataLists, FirstWeights, RunRecord, Start, write_run
from wenet_hs.tree.errors import DataError

HASH = "0123456789ab" + 52 * "c"
OTHER_HASH = 64 * "d"
PATHS = ("a.list", "b.list")
ADVICE = "; pair trainings with equal seed, dtype, processor, number of ranks, training list, units, torch, "
ADVICE += "weights of --checkpoint"


def recorded(
    *,
    processors: tuple[str, ...] = ("A",),
    ranks: int = 1,
    torch: str = "2.11.0",
    lists: tuple[DataFile, ...] = (DataFile(path=None, sha256=HASH),),
    units: str = HASH,
    start: str = HASH,
    **trees: str,
) -> RunRecord:
    """The record of a training; `start` is the SHA-256 of its first weights, or `none`."""
    weights = FirstWeights(kind="checkpoint", sha256=start)
    if start == "none":
        weights = FirstWeights(kind="random")
    return RunRecord(
        starts=(Start(processors=processors, ranks=ranks, packages={"torch": torch}),),
        lists=DataLists(train=lists),
        first_weights=weights,
        files={"units.txt": units, **{f"{name}.json": sha256 for name, sha256 in trees.items()}},
    )


def lists_without_sums(*paths: str) -> tuple[DataFile, ...]:
    return tuple(DataFile(path=path) for path in paths)


def training(name: str = "b", *, seed: int = 1, dtype: str = "fp32", **facts: Any) -> TrainingFacts:
    return training_of(name, {"seed": seed, "dtype": dtype}, recorded(**facts))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"seed": 2}, "seed '1' and '2'"),
        (
            {"dtype": "bf16", "processors": ("B",)},
            "dtype 'fp32' and 'bf16'; processor 'A' and 'B'",
        ),
        ({"processors": ("A", "B")}, "processor 'A' and 'A; B'"),
        ({"ranks": 2}, "number of ranks '1' and '2'"),
        (
            {"lists": (DataFile(path=None, sha256=OTHER_HASH),)},
            "training list '0123456789ab' and 'dddddddddddd'",
        ),
        ({"units": OTHER_HASH}, "units '0123456789ab' and 'dddddddddddd'"),
        ({"torch": "2.10.0"}, "torch '2.11.0' and '2.10.0'"),
        ({"start": OTHER_HASH}, "weights of --checkpoint '0123456789ab' and 'dddddddddddd'"),
        ({"start": "none"}, "weights of --checkpoint '0123456789ab' and 'none'"),
    ],
)
def test_other_trainings_are_no_pairs(changes: dict[str, Any], fault: str) -> None:
    a, b = training("a"), training(**changes)
    assert check_pair(a, training()) == []
    with pytest.raises(DataError) as caught:
        check_pair(a, b)
    assert str(caught.value) == f"a and b: {fault}{ADVICE}"


def test_a_training_on_two_processors_has_no_pair() -> None:
    with pytest.raises(DataError, match="processor 'A; B' and 'A; B'"):
        check_pair(training("a", processors=("A", "B")), training(processors=("A", "B")))


def test_a_training_that_was_resumed_with_another_torch_has_no_pair() -> None:
    starts = tuple(
        Start(processors=("A",), packages={"torch": version}) for version in ("2.10.0", "2.11.0")
    )
    resumed = training_of("a", {"seed": 1, "dtype": "fp32"}, RunRecord(starts=starts))
    with pytest.raises(DataError, match="torch '2.10.0; 2.11.0' and '2.11.0'"):
        check_pair(resumed, training())


def test_facts_that_are_not_recorded_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "exp/test/joint"
    folder.mkdir(parents=True)
    assert read_training(folder / "text") is None and read_training(Path("/text")) is None
    (tmp_path / "exp/train.yaml").write_text("seed: 1\ndtype: fp32\n")
    write_run(tmp_path / "exp", RunRecord(lists=DataLists(train=lists_without_sums(*PATHS))))
    incomplete = read_training(folder / "text")
    assert incomplete is not None
    assert (incomplete.name, incomplete.seed) == (str(folder / "text"), "1")
    lacking = ["processor", "number of ranks", "units", "torch", "weights of --checkpoint"]
    assert check_pair(incomplete, training()) == [*lacking, "paths of the training list"]
    assert check_pair(incomplete, training(lists=lists_without_sums(*PATHS))) == lacking
    with pytest.raises(
        DataError,
        match="paths of the training list 'a.list b.list' and 'a.list'; pair",
    ):
        check_pair(incomplete, training(lists=(DataFile(path="a.list", sha256=HASH),)))


def test_trainings_with_other_ctc_heads_start_from_models_of_their_own() -> None:
    def with_ctc(head: str, start: str, **files: str) -> TrainingFacts:
        settings = {"seed": 1, "dtype": "fp32", "ctc_conf": {"head": head}}
        flat = {"seed": 1, "dtype": "fp32", "ctc_conf.head": head}
        run = recorded(start=start, **files)
        return training_of("x", flat if start == "d" else settings, run)

    assert check_pair(with_ctc("softmax", HASH), with_ctc("hsoftmax", "d")) == []
    assert (
        check_pair(
            with_ctc("hsoftmax", HASH, ctc_tree="1"), with_ctc("hsoftmax", "d", ctc_tree="2")
        )
        == []
    )
    for head in ("softmax", "hsoftmax"):
        with pytest.raises(
            DataError, match="x and x: weights of --checkpoint '0123456789ab' and 'd'; pair"
        ):
            check_pair(with_ctc(head, HASH, ctc_tree="1"), with_ctc(head, "d", ctc_tree="1"))


def test_a_system_has_each_seed_once() -> None:
    check_system([training("a"), training("b", seed=2)])
    message = r"^a and c: the same seed, 1, twice in one system; give each seed once$"
    with pytest.raises(DataError, match=message):
        check_system([training("a"), training("b", seed=2), training("c")])
