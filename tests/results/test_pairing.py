# SPDX-License-Identifier: Apache-2.0
"""Which trainings are pairs: seed, processor, dtype, training list, units and ranks."""

from pathlib import Path

import pytest

from wenet_hs.results.experiment import read_training
from wenet_hs.results.pairing import Training, check_pair, check_system, training_of
from wenet_hs.runs.record import RunRecord, Start, run_of_settings
from wenet_hs.tree.errors import DataError

HASH = "0123456789ab" + 52 * "c"
FACTS = {
    "processor": "A",
    "ranks": "1",
    "sha256 of training list": HASH,
    "sha256 of units.txt": HASH,
    "torch": "2.11.0",
}
FACTS["sha256 of checkpoint"] = HASH
COMMAND = "wenet-hs train --train_data a.list b.list --cv_data dev.list"
ADVICE = "; pair trainings with equal seed, dtype, processor, number of ranks, training list, units, torch, "
ADVICE += "weights of --checkpoint"


def training(name: str = "b", *, seed: int = 1, dtype: str = "fp32", **changes: str | None) -> Training:
    facts = FACTS | {key.replace("_", " "): value for key, value in changes.items()}
    provenance = {key: value for key, value in facts.items() if value}
    return training_of(name, {"seed": seed, "dtype": dtype}, run_of_settings({"provenance": provenance}))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"seed": 2}, "seed '1' and '2'"),
        ({"dtype": "bf16", "processor": "B"}, "dtype 'fp32' and 'bf16'; processor 'A' and 'B'"),
        ({"processor": "A; B"}, "processor 'A' and 'A; B'"),
        ({"ranks": "2"}, "number of ranks '1' and '2'"),
        ({"sha256_of_training_list": 64 * "d"}, "training list '0123456789ab' and 'dddddddddddd'"),
        ({"sha256_of_units.txt": 64 * "d"}, "units '0123456789ab' and 'dddddddddddd'"),
        ({"torch": "2.10.0"}, "torch '2.11.0' and '2.10.0'"),
        ({"sha256_of_checkpoint": 64 * "d"}, "weights of --checkpoint '0123456789ab' and 'dddddddddddd'"),
        ({"sha256_of_checkpoint": "none"}, "weights of --checkpoint '0123456789ab' and 'none'"),
    ],
)
def test_other_trainings_are_no_pairs(changes: dict[str, str], fault: str) -> None:
    a, b = training("a"), training(**changes)
    assert check_pair(a, training()) == []
    with pytest.raises(DataError) as caught:
        check_pair(a, b)
    assert str(caught.value) == f"a and b: {fault}{ADVICE}"


def test_a_training_on_two_processors_has_no_pair() -> None:
    with pytest.raises(DataError, match="processor 'A; B' and 'A; B'"):
        check_pair(training("a", processor="A; B"), training(processor="A; B"))


def test_a_training_that_was_resumed_with_another_torch_has_no_pair() -> None:
    starts = tuple(Start(processors=("A",), packages={"torch": version}) for version in ("2.10.0", "2.11.0"))
    resumed = training_of("a", {"seed": 1, "dtype": "fp32"}, RunRecord(starts=starts))
    with pytest.raises(DataError, match="torch '2.10.0; 2.11.0' and '2.11.0'"):
        check_pair(resumed, training())


def test_facts_that_are_not_recorded_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "exp/test/joint"
    folder.mkdir(parents=True)
    assert read_training(folder / "text") is None and read_training(Path("/text")) is None
    (tmp_path / "exp/train.yaml").write_text(f"seed: 1\ndtype: fp32\nprovenance:\n  command: {COMMAND}\n")
    old = read_training(folder / "text")
    assert old is not None and (old.name, old.seed) == (str(folder / "text"), "1")
    lacking = ["processor", "number of ranks", "units", "torch", "weights of --checkpoint"]
    assert check_pair(old, training()) == [*lacking, "paths of the training list"]
    same = training(sha256_of_training_list=None, command=COMMAND.replace("dev", "other"))
    assert check_pair(old, same) == lacking
    with pytest.raises(DataError, match="paths of the training list 'a.list b.list' and 'a.list'; pair"):
        check_pair(old, training(command="train --train_data a.list"))


def test_trainings_with_other_ctc_heads_start_from_models_of_their_own() -> None:
    def with_ctc(head: str, start: str, **files: str) -> Training:
        provenance = (
            FACTS | {"sha256 of checkpoint": start} | {f"sha256 of {name}.json": of for name, of in files.items()}
        )
        settings = {"seed": 1, "dtype": "fp32", "ctc_conf": {"head": head}}
        flat = {"seed": 1, "dtype": "fp32", "ctc_conf.head": head}
        run = run_of_settings({"provenance": provenance})
        return training_of("x", flat if start == "d" else settings, run)

    assert check_pair(with_ctc("softmax", HASH), with_ctc("hsoftmax", "d")) == []
    assert check_pair(with_ctc("hsoftmax", HASH, ctc_tree="1"), with_ctc("hsoftmax", "d", ctc_tree="2")) == []
    for head in ("softmax", "hsoftmax"):
        with pytest.raises(DataError, match="x and x: weights of --checkpoint '0123456789ab' and 'd'; pair"):
            check_pair(with_ctc(head, HASH, ctc_tree="1"), with_ctc(head, "d", ctc_tree="1"))


def test_a_system_has_each_seed_once() -> None:
    check_system([training("a"), training("b", seed=2)])
    message = r"^a and c: the same seed, 1, twice in one system; give each seed once$"
    with pytest.raises(DataError, match=message):
        check_system([training("a"), training("b", seed=2), training("c")])
