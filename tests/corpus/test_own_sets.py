# SPDX-License-Identifier: Apache-2.0
"""Rules of --split_by, by hand."""

import pytest

from wenet_hs.corpus.own_sets import describe_common, hold_out_sets
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import ConfigError

SHARES = {"test": 0.25, "dev": 0.25}


def make_utterances(*rows: tuple[str, str | None]) -> list[Utterance]:
    """One utterance per text and speaker, in recordings of their own."""
    return [
        Utterance(key=f"u{number}", wav=f"{number}.wav", txt=text, speaker=speaker, duration=1.0)
        for number, (text, speaker) in enumerate(rows)
    ]


def test_whole_speakers_and_unknown_ones_in_train():
    rows = [("a", "Ana"), ("b", "Ben"), ("c", "Cem"), ("d", None)]
    splits, left_out, rule = hold_out_sets(
        make_utterances(*rows), SHARES, split_by="speaker", seed=1
    )
    assert [*splits] == ["test", "dev", "train"]
    assert "u3" in {u.key for u in splits["train"]}
    assert [len(splits[name]) for name in ("test", "dev", "train")] == [1, 1, 2]
    assert left_out == [] and rule == "speaker"


def test_auto_takes_the_first_rule_that_leaves_out_few():
    rows = [("a", None), ("a", None), ("b", None), ("c", None)]
    splits, _, rule = hold_out_sets(make_utterances(*rows), SHARES, split_by="auto", seed=1)
    assert rule == "auto: sentence"  # no speaker is known
    assert {u.key for u in splits["train"]} == {"u0", "u1"}  # the largest group


def test_auto_ends_with_single_utterances():
    rows = [("a", None)] * 4
    overlapping = [Utterance(key=f"u{n}", wav="r.wav", txt="a", start=0.0, end=9.0) for n in "abcd"]
    for utterances, expected in ((make_utterances(*rows), "overlaps"), (overlapping, "none")):
        *_, rule = hold_out_sets(utterances, SHARES, split_by="auto", seed=1)
        assert rule == f"auto: {expected}"


def test_too_few_groups():
    utterances = make_utterances(("a", "Ana"), ("b", "Ben"), ("c", None))
    with pytest.raises(ConfigError, match="^--split_by speaker: 2 known speakers for 3 sets; use"):
        hold_out_sets(utterances, SHARES, split_by="speaker", seed=1)
    with pytest.raises(ConfigError, match="^--split_by auto: 2 utterances for 3 sets; use"):
        hold_out_sets(utterances[:2], SHARES, split_by="auto", seed=1)


def test_what_sets_have_in_common():
    a, b, c, d = make_utterances(("x", "Ana"), ("x", "Ben"), ("y", "Ana"), ("z", None))
    assert describe_common({"train": [a, d], "test": [b, c]}) == (
        "1 of 2 speakers (1 utterances have no speaker), 1 of 3 sentences, no overlaps"
    )
    assert describe_common({"train": [d]}) == "no known speakers, 0 of 1 sentences, no overlaps"
