# SPDX-License-Identifier: Apache-2.0
"""ARPA files and their errors, n-grams with backoff worked by hand, searches with a language model."""

import bz2
import gzip
import lzma
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from plain_search import ctc_texts, random_log_probs
from small_models import SPECIAL, small_batch, small_model

from wenet_hs.decode import MODES, DecodeOptions, Hypothesis, decode
from wenet_hs.decode.ctc_search import prefix_beam_search_with_lm
from wenet_hs.decode.rescoring import rescore
from wenet_hs.heads.kernels.search import topk_lowest_id_first
from wenet_hs.lm import backoff
from wenet_hs.lm.backoff import KenlmModel, NgramModel
from wenet_hs.lm.language_model import LanguageModel, TextModel
from wenet_hs.lm.loader import load_language_model
from wenet_hs.text.tokenizer import CharTokenizer, make_tokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree.errors import ConfigError, DataError

UNITS = UnitTable(("<blank>", "<unk>", "<sos/eos>", *"abc▁defg"), SPECIAL)
A, B, C, SPACE = 3, 4, 5, 6
ARPA = """
\\data\\
ngram 1=6
ngram 2=5
ngram 3=2

\\1-grams:
-1.0\t<unk>
-99\t<s>\t-0.5
-0.8\t</s>
-0.4\ta\t-0.3
-0.7\tb\t-0.2
-1.2\t▁\t-0.1

\\2-grams:
-0.2\t<s> a\t-0.05
-0.6\ta b\t-0.15
-0.9\tb a
-1.1\tb </s>
-0.35\ta a\t-0.25

\\3-grams:
-0.11\t<s> a b
-0.22\ta b a

\\end\\
"""
HAND_WORKED = [  # history, next unit, sum of log10 probability and backoffs
    ((), A, -0.2),  # <s> a
    ((), B, -0.5 - 0.7),  # backoff(<s>) + b
    ((A,), B, -0.11),  # <s> a b
    ((A,), A, -0.05 - 0.35),  # backoff(<s> a) + a a
    ((A,), SPACE, -0.05 - 0.3 - 1.2),  # backoff(<s> a) + backoff(a) + space
    ((A, B), A, -0.22),  # a b a
    ((A, B), SPECIAL.eos, -0.15 - 1.1),  # backoff(a b) + b </s>
    ((A, B), B, -0.15 - 0.2 - 0.7),
    ((B,), A, -0.9),  # <s> b is no bigram: the context is b alone
    ((B, A), SPECIAL.eos, 0.0 - 0.3 - 0.8),  # b a has no backoff written: 0
    ((A,), C, -0.05 - 0.3 - 1.0),  # c is unknown
    ((A, C), A, -0.4),  # after an unknown unit the context is empty
    ((A, A, B), A, -0.22),
    ((C,), SPECIAL.unk, -1.0),
]


def model_of(folder: Path, text: str = ARPA, units: UnitTable = UNITS) -> LanguageModel:
    path = folder / "lm.arpa"
    path.write_text(text, "utf-8")
    return load(path, units)


def load(path: Path, units: UnitTable) -> LanguageModel:
    lm = load_language_model(path, CharTokenizer(units))
    assert isinstance(lm, LanguageModel)
    return lm


def log_prob(model: LanguageModel, history: Sequence[int], unit: int) -> float:
    states = model.start(1)
    for past in history:
        states = model.advance(states, torch.tensor([past]))
    return float(model.score(states, torch.tensor([[unit]])))


def text_log_prob(model: LanguageModel, ids: Sequence[int]) -> float:
    """With the end."""
    return sum(log_prob(model, ids[:i], unit) for i, unit in enumerate((*ids, SPECIAL.eos)))


def test_backoff_by_hand(tmp_path: Path) -> None:
    model = model_of(tmp_path)
    assert isinstance(model, NgramModel) and model.unknown == [*"cdefg"]
    for history, unit, log10 in HAND_WORKED:
        assert log_prob(model, history, unit) == pytest.approx(log10 * math.log(10), abs=1e-6), (
            history,
            unit,
        )
    # The same in one call: hypotheses of different histories, several candidates of each.
    states = model.advance(model.start(3), torch.tensor([A, B, C]))
    scores = model.score(states[[2, 0]], torch.tensor([[A, B], [B, SPACE]]))
    expected = [[-0.4, -0.7], [-0.11, -0.05 - 0.3 - 1.2]]
    assert (scores / math.log(10)).tolist() == [pytest.approx(row, abs=1e-6) for row in expected]


def test_the_space_may_be_named_space_on_both_sides(tmp_path: Path) -> None:
    tables = (
        UNITS,
        UnitTable(tuple("<space>" if unit == "▁" else unit for unit in UNITS.units), SPECIAL),
    )
    for text in (ARPA, ARPA.replace("▁", "<space>")):
        for table in tables:
            (tmp_path / "lm.arpa").write_text(text, "utf-8")
            model = load_language_model(tmp_path / "lm.arpa", make_tokenizer("char", table))
            assert isinstance(model, NgramModel) and model.unknown == [*"cdefg"]
            assert log_prob(model, (A,), SPACE) == pytest.approx(
                (-0.05 - 0.3 - 1.2) * math.log(10), abs=1e-6
            )


def test_a_unit_may_be_unicode_white_space(tmp_path: Path) -> None:
    units = UnitTable.from_units("ab\u3000\xa0")
    model = model_of(tmp_path, ARPA.replace("▁", "\u3000").replace("b a\n", "\u3000 a\n"), units)
    assert model.unknown == ["\xa0"]
    space, a = units.units.index("\u3000"), units.units.index("a")
    assert log_prob(model, (space,), a) == pytest.approx(-0.9 * math.log(10))


def test_a_file_without_unk_and_with_pruned_contexts(tmp_path: Path) -> None:
    text = "\\data\\\nngram 1=2\nngram 2=0\nngram 3=1\n\n\\1-grams:\n-1\ta\n-0.5\t</s>\n\n\\2-grams:\n\n"
    model = model_of(tmp_path, text + "\\3-grams:\n-0.3\ta a a\n\n\\end\\\n")
    assert log_prob(model, (A, A), A) == pytest.approx(-0.3 * math.log(10))
    assert log_prob(model, (A,), A) == pytest.approx(-math.log(10))
    assert log_prob(model, (A,), B) == pytest.approx(-100 * math.log(10))


@pytest.mark.parametrize("title", ["", "\\3-grams:\n\n"])
def test_an_order_without_n_grams(tmp_path: Path, title: str) -> None:
    """KenLM reads it if its section has a title; other programs leave out the title too."""
    begin, _ = ARPA.replace("ngram 3=2", "ngram 3=0").split("\\3-grams:\n")
    model = model_of(tmp_path, f"{begin}{title}\\end\\\n")
    assert log_prob(model, (), A) == pytest.approx(-0.2 * math.log(10), abs=1e-6)
    assert log_prob(model, (A,), B) == pytest.approx((-0.05 - 0.6) * math.log(10), abs=1e-6)
    assert log_prob(model, (A, B), A) == pytest.approx((-0.15 - 0.9) * math.log(10), abs=1e-6)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
def test_a_compressed_file_under_another_name(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "lm.arpa"
    path.write_bytes(compress(ARPA.encode()))
    model = load(path, UNITS)
    for history, unit, log10 in HAND_WORKED:
        assert log_prob(model, history, unit) == pytest.approx(log10 * math.log(10), abs=1e-6)
    path.write_bytes(path.read_bytes()[:-12])
    kind = {gzip.compress: ".gz", lzma.compress: ".xz", bz2.compress: ".bz2"}[compress]
    with pytest.raises(
        DataError, match=rf"lm.arpa: not a complete {kind} file \(.*\); copy it again, or compress"
    ):
        load(path, UNITS)


def test_a_compressed_binary_file(tmp_path: Path) -> None:
    content = (Path(__file__).parents[1] / "golden/kenlm/units.bin").read_bytes()
    for name in ("lm.bin", "lm.bin.gz"):
        (tmp_path / name).write_bytes(gzip.compress(content))
        with pytest.raises(
            DataError,
            match=f"{name}: a binary language model of KenLM; decompress it and give it to",
        ):
            load(tmp_path / name, UNITS)


ERRORS = [
    (("\\end\\", ""), r"lm.arpa: ends before \\end\\; give a complete n-gram model in ARPA format"),
    (
        ("\\data\\", "data"),
        r"lm.arpa: has no line \\data\\; give a complete n-gram model in ARPA format",
    ),
    (("ngram 2=5", "ngram 3=5"), r"lm.arpa:4: expected `ngram 2=COUNT`, found 'ngram 3=5'"),
    (
        ("ngram 2=5", "ngram 2=6"),
        r"lm.arpa:\d+: 5 n-grams, but the header has 6; the file is damaged",
    ),
    (
        ("ngram 2=5", "ngram 2=4"),
        r"lm.arpa:20: more 2-grams than the 4 of the header; the file is damaged",
    ),
    (
        ("ngram 3=2", "ngram 3=0"),
        r"lm.arpa:23: more 3-grams than the 0 of the header; the file is damaged",
    ),
    (("-0.7\tb", "x\tb"), r"lm.arpa:12: 'x' is no logarithm; the file is damaged"),
    (("-0.7\tb", "0.7\tb"), r"lm.arpa:12: a probability of 10\^0.7 is above 1"),
    (("b a\n", "b d\n"), r"lm.arpa:18: 'd' is no 1-gram; the file is damaged"),
    (("b a\n", "a b\n"), r"lm.arpa:18: 'a b' is repeated; remove one of the two lines"),
    (
        ("a b a\n", "a b\n"),
        r"lm.arpa:24: expected a logarithm, 3 words and a backoff, found 3 fields",
    ),
    (("</s>", "<e>"), r"lm.arpa: has no 1-gram </s>; build the model from whole sentences"),
    (
        ("ngram 3=2\n\n", "ngram 3=2"),
        r"lm.arpa:5: expected `ngram 3=COUNT`, found 'ngram 3=2\\\\1-grams:'",
    ),
]


@pytest.mark.parametrize(("change", "message"), ERRORS)
def test_errors_of_a_file(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        model_of(tmp_path, ARPA.replace(*change))


def test_an_n_gram_model_of_words_rescores_texts(tmp_path: Path) -> None:
    """The model above with words for its units; the recogniser has characters, and spaces between
    words.
    """
    words = {"a": "ba", "b": "ab", "▁": "cab"}
    text = re.sub(r"(?<=[\t ])[ab▁](?=[\t \n])", lambda unit: words[unit[0]], ARPA)
    (tmp_path / "lm.arpa").write_text(text, "utf-8")
    model = load_language_model(tmp_path / "lm.arpa", CharTokenizer(UNITS))
    assert isinstance(model, TextModel)
    texts = [(B, A, SPACE, A, B), (A, B, SPACE, C), ()]  # ba ab; ab c; nothing
    expected = [-0.2 - 0.11 - 0.15 - 1.1, (-0.5 - 0.7) + (-0.2 - 1.0) - 0.8, -0.5 - 0.8]
    assert model.score_texts(texts) == pytest.approx(
        [math.log(10) * log10 for log10 in expected], abs=1e-6
    )
    assert model.score_texts(texts[:1]) == pytest.approx([math.log(10) * expected[0]], abs=1e-6)


def test_pieces_with_the_space_at_their_end_are_units(tmp_path: Path) -> None:
    """Only one of the words is a unit here, but no model of words has the sign of a space."""
    words = {"a": "ba▁", "b": "ca", "▁": "a"}
    text = re.sub(r"(?<=[\t ])[ab▁](?=[\t \n])", lambda unit: words[unit[0]], ARPA)
    assert isinstance(model_of(tmp_path, text), LanguageModel)


def test_a_model_of_words_divides_text_of_a_script_without_spaces(tmp_path: Path) -> None:
    """The model above with Thai words: the better text has the better score, which was that of
    `<unk>` for both.
    """
    words = {"a": "แมว", "b": "กิน", "▁": "ปลา"}
    text = re.sub(r"(?<=[\t ])[ab▁](?=[\t \n])", lambda unit: words[unit[0]], ARPA)
    (tmp_path / "lm.arpa").write_text(text, "utf-8")
    table = UnitTable.from_units("แมวกินปลา▁")
    model = load_language_model(tmp_path / "lm.arpa", CharTokenizer(table))
    assert isinstance(model, TextModel)
    ids = [
        [table.units.index(letter) for letter in text]
        for text in ("แมวกิน", "แมววกิน", "แมว▁กิน", "ปลาแมว")
    ]
    known = -0.2 - 0.11 - 0.15 - 1.1  # as `a b` above
    unknown_letter, others = (
        -0.2 - (0.05 + 0.3 + 1.0) - 0.7 - 1.1,
        -(0.5 + 1.2) - (0.1 + 0.4) - (0.3 + 0.8),
    )
    expected = [math.log(10) * log10 for log10 in (known, unknown_letter, known, others)]
    assert model.score_texts(ids) == pytest.approx(expected, abs=1e-5)


def test_a_model_of_words_that_no_hypothesis_has_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = {"a": "Ba", "b": "Ab", "▁": "Cab"}  # another case than the recogniser's
    text = re.sub(r"(?<=[\t ])[ab▁](?=[\t \n])", lambda unit: words[unit[0]], ARPA)
    (tmp_path / "lm.arpa").write_text(text, "utf-8")
    model = load_language_model(tmp_path / "lm.arpa", CharTokenizer(UNITS))
    assert isinstance(model, TextModel)
    for _ in range(4):
        model.score_texts([(A, B, SPACE, B, A)] * 25)
    message = "lm.arpa: does not know 100 of the first 100 words of hypotheses; give a model of this language and spelling"
    assert caplog.text.count(message) == 1


def test_units_that_the_file_does_not_know_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model_of(tmp_path, units=UnitTable(("<blank>", "<unk>", "<sos/eos>", "a", "b"), SPECIAL))
    assert not caplog.text
    model_of(tmp_path, ARPA.replace("-1.2\t▁\t-0.1\n", "").replace("ngram 1=6", "ngram 1=5"))
    assert (
        "lm.arpa: does not know 6 of the 8 units (▁ c d e f, and 1 more), which get the"
        in caplog.text
    )
    with pytest.raises(
        DataError, match=r"lm.arpa: knows none of the 5 units of units.txt; build it from text"
    ):
        model_of(tmp_path, units=UnitTable(("<blank>", "<unk>", "<sos/eos>", "x", "y"), SPECIAL))


def test_a_binary_file_is_read_by_kenlm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, kenlm = tmp_path / "lm.bin", MagicMock()
    path.write_bytes((Path(__file__).parents[1] / "golden/kenlm/units-v.bin").read_bytes())
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with pytest.raises(
        ConfigError, match=r"--lm .*lm.bin: is a binary file of KenLM; run `pip install 'wenet_hs"
    ):
        load(path, UNITS)
    monkeypatch.setitem(sys.modules, "kenlm", kenlm)
    kenlm.Model.return_value.__contains__.side_effect = lambda word: word in ("a", "▁")
    assert load(path, UNITS).unknown == [*"bcdefg"]
    kenlm.Model.side_effect = OSError
    with pytest.raises(
        DataError, match=r"lm.bin: kenlm cannot read it; build it again with build_binary"
    ):
        load(path, UNITS)


class MadeUpState(list[str]):
    """As kenlm's: the history as far as the model needs it, with a hash."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))


def test_kenlm_keeps_a_state_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a search of any length needs no more memory than the model has contexts."""
    kenlm = MagicMock(State=MadeUpState)

    def score(state: list[str], word: str, after: list[str]) -> float:
        after[:] = [word]
        return -1.0 - len(state)

    kenlm.Model.return_value.BaseScore.side_effect = score
    monkeypatch.setitem(sys.modules, "kenlm", kenlm)
    monkeypatch.setattr(backoff, "_MAX_STEPS", 5)
    lm = KenlmModel(tmp_path / "lm.bin", UNITS)
    states = lm.start(2)
    for ids in ([3, 4], [4, 3], [3, 4], [5, 6], [3, 4]):
        expected = torch.tensor(
            [[-2.302585] if state == 0 else [-4.60517] for state in states.tolist()]
        )
        torch.testing.assert_close(lm.score(states, torch.tensor([ids]).T), expected)
        states = lm.advance(states, torch.tensor(ids))
    assert len(lm._states) == 5 and len(lm._steps) <= 5


def test_kenlm_gives_the_same_scores(tmp_path: Path) -> None:
    pytest.importorskip("kenlm", reason="kenlm is not installed")
    ours = model_of(tmp_path)
    theirs = KenlmModel(tmp_path / "lm.arpa", UNITS)
    for history, unit, _ in HAND_WORKED:
        assert log_prob(theirs, history, unit) == pytest.approx(
            log_prob(ours, history, unit), abs=1e-5
        )


# ---- searches


def test_exhaustive_prefix_search_is_sum_over_alignments_plus_language_model(
    tmp_path: Path,
) -> None:
    lm = model_of(tmp_path)
    log_probs = random_log_probs(1, 1, 3, 7)
    values, ids = topk_lowest_id_first(log_probs, 7)
    options = DecodeOptions(beam_size=400, lm_weight=0.7, length_bonus=0.4)
    by_lm_and_ctc = prefix_beam_search_with_lm(
        values, ids, torch.tensor([3]), blank=0, eos=SPECIAL.eos, options=options, lm=lm
    )
    (found,), (by_ctc,) = by_lm_and_ctc
    sums = ctc_texts(log_probs[0])
    assert {h.ids: pytest.approx(h.score, abs=1e-5) for h in by_ctc} == sums
    assert [h.ids for h in found] == [h.ids for h in by_ctc]
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    for one in found[::7]:
        fusion = 0.7 * text_log_prob(lm, one.ids) + 0.4 * len(one.ids)
        assert one.score == pytest.approx(sums[one.ids] + fusion, abs=1e-4)


def test_prefix_search_of_no_utterances_with_a_language_model_is_empty(tmp_path: Path) -> None:
    empty = (
        torch.zeros(0, 3, 7),
        torch.zeros(0, 3, 7, dtype=torch.int64),
        torch.zeros(0, dtype=torch.int64),
    )
    options = DecodeOptions(beam_size=4, lm_weight=0.7)
    found = prefix_beam_search_with_lm(
        *empty, blank=0, eos=SPECIAL.eos, options=options, lm=model_of(tmp_path)
    )
    assert found == ([], [])


def test_a_language_model_changes_every_mode_but_the_greedy_one(tmp_path: Path) -> None:
    lm, model, batch = model_of(tmp_path), small_model(seed=1), small_batch([24], [1])
    arguments = (model, batch.features, batch.feature_lengths, MODES)
    without = decode(*arguments, DecodeOptions(beam_size=4))
    found = decode(*arguments, DecodeOptions(beam_size=4, lm_weight=3.0), lm=lm)
    assert found["ctc_greedy_search"] == without["ctc_greedy_search"]
    for mode in ("attention", "ctc_prefix_beam_search", "joint"):
        (best, *_), (other, *_) = found[mode][0], without[mode][0]
        assert text_log_prob(lm, best.ids) > text_log_prob(lm, other.ids), mode
    assert {h.ids for h in found["attention_rescoring"][0]} == {
        h.ids for h in found["ctc_prefix_beam_search"][0]
    }


def test_rescoring_adds_the_language_model_as_one_more_term(tmp_path: Path) -> None:
    lm, model = model_of(tmp_path), small_model(seed=1)
    memory = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(1))
    candidates = [[Hypothesis((A, B, B), -1.0), Hypothesis((), -2.0), Hypothesis((C,), -3.0)]]
    plain = rescore(model, memory, torch.tensor([6]), candidates, DecodeOptions())[0]
    options = DecodeOptions(lm_weight=0.5, length_bonus=0.2)
    found = {
        h.ids: h.score
        for h in rescore(model, memory, torch.tensor([6]), candidates, options, lm)[0]
    }
    for one in plain:
        gain = 0.5 * text_log_prob(lm, one.ids) + 0.2 * len(one.ids)
        assert found[one.ids] == pytest.approx(one.score + gain, abs=1e-5)
