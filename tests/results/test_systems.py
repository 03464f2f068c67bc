# SPDX-License-Identifier: Apache-2.0
"""Systems over seeds: which experiments are one system, their differences, and trainings that are
no pairs.
"""

from pathlib import Path

import pytest

from wenet_hs.results.experiment import ExperimentResults
from wenet_hs.results.folder import NO_DECODING_RECORD, DecodedTest
from wenet_hs.results.systems import compare_systems, group_seeds
from wenet_hs.runs.record import FirstWeights, RunRecord, Start
from wenet_hs.score import Rules, score

NO_RECORD = RunRecord()
REF = {f"xx{i}": "abcdefghij" for i in range(8)}


def experiment(
    name: str, seed: int | None, num_wrong: int, *, dtype: str = "fp32", run: RunRecord = NO_RECORD
) -> ExperimentResults:
    hypothesis = {
        key: "abcdefghix" if i < num_wrong else text for i, (key, text) in enumerate(REF.items())
    }
    report = score(REF, hypothesis, rules=Rules(metric="cer"), num_resamples=0)
    settings = {"head": name[0], "dtype": dtype} | ({} if seed is None else {"seed": seed})
    return ExperimentResults(
        name=name,
        folder=Path(),
        test=DecodedTest(Path("test")),
        settings=settings,
        run=run,
        curves={},
        tree=None,
        scores={"joint": report},
        decoding=NO_DECODING_RECORD,
        absent=(),
        outdated=(),
    )


def trainings(
    name: str, wrong: tuple[int, ...], *, dtype: str = "fp32", run: RunRecord = NO_RECORD
) -> list[ExperimentResults]:
    return [
        experiment(f"{name}-seed{seed}", seed, number, dtype=dtype, run=run)
        for seed, number in enumerate(wrong, start=1)
    ]


def on_processor(kind: str) -> RunRecord:
    return RunRecord(starts=(Start(processors=(kind,)),))


def from_base(name: str) -> RunRecord:
    return RunRecord(first_weights=FirstWeights(kind="checkpoint", name=name))


def test_a_system_is_everything_but_the_seed() -> None:
    found = group_seeds(
        [
            *trainings("a", (1, 2)),
            *trainings("a-brown", (1, 2), run=RunRecord(files={"tree.json": "b"})),
            *trainings("a-tuned", (1,), run=from_base("x")),
            experiment("a-tuned-seed2", 2, 2, run=from_base("y")),
            *(experiment(name, 1, 1) for name in ("a-again", "b")),
            *(experiment(name, None, 1) for name in ("c1", "c2")),
        ],
        "joint",
    )
    numbers = {"a": 2, "a-brown": 2, "a-tuned": 2, "a-again": 1, "b": 1, "c1": 1, "c2": 1}
    assert {name: len(of) for name, of in found.items()} == numbers
    assert group_seeds(trainings("a", (1, 2)), "attention") == {}


def test_systems_are_compared_with_the_first_one() -> None:
    systems = (
        trainings("a", (1, 2, 3, 4, 5)),
        trainings("b", (2, 3, 5, 7, 6)),
        trainings("c", (1, 3, 2, 4, 6)),
    )
    compared = compare_systems([*sum(systems, []), *trainings("d", (0, 1, 1))], ["joint"])
    rows = compared.systems
    faults = compared.faults
    assert [(row.name, row.baseline, len(row.rates)) for row in rows] == [
        *((name, "a", 5) for name in "abc"),
        ("d", "a", 3),
    ]
    assert rows[0].difference is None and faults == []
    _, b, c, d = rows
    assert b.difference is not None and c.difference is not None and d.difference is not None
    assert b.difference.differences == pytest.approx([1 / 80, 1 / 80, 2 / 80, 3 / 80, 1 / 80])
    assert b.difference.p is not None and b.adjusted_p == 2 * b.difference.p < 0.05, (
        "two comparisons have a p"
    )
    assert (c.adjusted_p, d.difference.p, d.adjusted_p) == (c.difference.p, None, None)


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        (
            trainings("b", (1, 2), run=on_processor("Y")),
            "a-seed1 and b-seed1: processor 'X' and 'Y'; pair trainings with eq",
        ),
        (trainings("b", (1, 2), dtype="bf16"), "a-seed1 and b-seed1: dtype 'fp32' and 'bf16'"),
        (
            [experiment("b5", 5, 1), experiment("b6", 6, 1)],
            "seeds 1, 2 and 5, 6; train both with the same seeds",
        ),
    ],
)
def test_trainings_that_are_no_pairs_are_named(other: list[ExperimentResults], fault: str) -> None:
    first = trainings("a", (1, 2), run=on_processor("X"))
    compared = compare_systems([*first, *other], ["joint"])
    rows = compared.systems
    faults = compared.faults
    assert [row.difference for row in rows] == [None, None]
    assert len(faults) == 1 and faults[0].startswith(
        f"a and {rows[1].name} are not compared over seeds in joint: {fault}"
    )
