# SPDX-License-Identifier: Apache-2.0
"""The reader of n-best hypotheses."""

from pathlib import Path

import pytest

from wenet_hs.runs.hypotheses import Alternative, NBestList, read_hypotheses
from wenet_hs.tree.errors import DataError


def test_lines_that_have_no_hypotheses_are_none(tmp_path: Path) -> None:
    path = tmp_path / "hyps.jsonl"
    alternative = '{"text": "a b", "score": -1.5, "units": ["a", "b"]}'
    lines = [
        f'{{"key": "x", "lang": "ky", "text": "a b", "confidence": 0.5, "nbest": [{alternative}]}}',
        '{"key": "y", "nbest": []}',
        '{"key": "z", "confidence": "high"}',
        '{"confidence": 0.5}',
        '{"key": "w", "confid',
    ]
    path.write_text("\n".join(lines))
    best = Alternative(text="a b", score=-1.5, units=("a", "b"))
    complete = NBestList(key="x", lang="ky", confidence=0.5, nbest=[best])
    assert [*read_hypotheses(path)] == [complete, NBestList(key="y", nbest=[]), None, None, None]


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="hyps.jsonl: "):
        [*read_hypotheses(tmp_path / "hyps.jsonl")]
