# SPDX-License-Identifier: Apache-2.0
"""A table of utterances returns what was put in, and several lists are one table."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from wenet_hs.data import table as table_module
from wenet_hs.data.shards import open_lists
from wenet_hs.data.table import UtteranceTable
from wenet_hs.errors import DataError
from wenet_hs.manifest import Utterance, write_data_list


def random_utterances(num: int, prefix: str = "u") -> list[Utterance]:
    rng = np.random.default_rng(num)
    return [
        Utterance(
            key=f"{prefix}{i}",
            wav=f"{i}.wav",
            txt="".join(rng.choice(list("abé x"), rng.integers(0, 40))),
            lang=None if i % 7 == 0 else ("ca", "es", "fr")[i % 3],
            duration=None if i % 11 == 0 else float(rng.uniform(0.05, 8)),
            speaker="s" if i % 2 else None,
            start=0.5 if i % 5 == 0 else None,
        )
        for i in range(num)
    ]


def test_a_table_returns_its_utterances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_BLOCK_ROWS", 7)
    utterances = random_utterances(60)
    table = UtteranceTable(iter(utterances))
    assert list(table) == utterances == list(pickle.loads(pickle.dumps(table)))
    assert table[3:9] == utterances[3:9]
    assert table[-1] == utterances[-1]
    with pytest.raises(IndexError):
        table[60]
    assert table.lang_names == ("es", "fr", "ca")  # in the order of their first utterances
    assert [table.lang_names[i] if i >= 0 else None for i in table.langs] == [u.lang for u in utterances]
    assert len(UtteranceTable([])) == 0


def test_the_digest_depends_on_everything_except_the_audio_path(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Utterance(key="a", wav="a.wav", txt="x", duration=1.0)
    digest = UtteranceTable([one]).digest
    assert digest == UtteranceTable([Utterance(key="a", wav="b.wav", txt="x", duration=1.0)]).digest
    assert digest != UtteranceTable([Utterance(key="a", wav="a.wav", txt="y", duration=1.0)]).digest
    many = random_utterances(20)
    whole = UtteranceTable(many).digest
    monkeypatch.setattr(table_module, "_BLOCK_ROWS", 3)
    assert UtteranceTable(many).digest == whole


def test_several_lists_are_one_table(tmp_path: Path) -> None:
    write_data_list(tmp_path / "a", random_utterances(30, "a"))
    write_data_list(tmp_path / "b", random_utterances(41, "b"))
    paths = [tmp_path / "a", tmp_path / "b"]
    table = open_lists(paths)
    assert list(table) == random_utterances(30, "a") + random_utterances(41, "b")
    assert table.list_starts == (0, 30)
    with pytest.raises(DataError, match="^--cv_data: utterance 'a0' is in more than one list; give each a unique key"):
        open_lists([*paths, tmp_path / "a"], flag="--cv_data")
