# SPDX-License-Identifier: Apache-2.0
"""Random pairs in twenty scripts: our counts are jiwer's and the textbook's; and WeNet's known faults, by hand."""

from pathlib import Path

import pytest
from agreement import check_pairs

from wenet_hs.bin import score as command
from wenet_hs.bin.command import run_command
from wenet_hs.manifest import write_text
from wenet_hs.score import count_errors, split_units


def test_a_sample_agrees() -> None:
    check_pairs(300)


@pytest.mark.slow
def test_ten_thousand_agree() -> None:
    check_pairs(10_000)


@pytest.mark.parametrize(
    ("metric", "ref", "hyp", "counts"),
    [
        ("cer", "été", "ete", (3, 2)),  # WeNet: ÉT, É
        ("cer", "Straße", "Strasse", (6, 2)),  # WeNet: no error, both upper-cased to SS
        ("wer", "groß", "gross", (1, 1)),
        ("cer", "groß", "GROSS", (4, 5)),
        ("cer", "қазақ тілі", "казак тілі", (9, 2)),  # WeNet: cut before every letter
        ("per", "tʃ a ə̃", "t ʃ a ə̃", (3, 2)),  # WeNet: tʃ is two units
        ("per", "s S", "s s", (2, 1)),  # WeNet: one phone
        ("cer", "bonjour écoute", "bonjur écoute", (13, 1)),  # WeNet: 50 %
        ("cer", "a b", "ab", (2, 0)),  # spaces never count there, and here only when asked
    ],
)
def test_what_wenets_scorer_gets_wrong(metric: str, ref: str, hyp: str, counts: tuple[int, int]) -> None:
    found = count_errors(split_units(ref, metric), split_units(hyp, metric))
    assert (found.num_units, found.errors) == counts


def test_a_missing_hypothesis_counts_and_a_key_is_never_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """WeNet leaves an utterance without hypothesis out, and scores the tail of a key that is not ASCII."""
    monkeypatch.chdir(tmp_path)
    reference = {"a": "bir", "b": "eki", "ключ_é": "üç", "d": "tört"}
    write_text("ref", reference)
    write_text("hyp", {key: text for key, text in reference.items() if key != "d"})
    assert run_command(command, ["--metric", "cer", "--ref", "ref", "--hyp", "hyp", "--num_resamples", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-2].split()[2:8] == ["4", "12", "0", "4", "0", "33.33"]
