# SPDX-License-Identifier: Apache-2.0
"""The page: self-contained, escaped, well-formed, with every number where it belongs."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from wenet_hs.report import build_page, collect
from wenet_hs.report.utterances import aligned, worst_utterances
from wenet_hs.score import ErrorCounts, Rules, ScoredUtterance, count_errors, score, split_units
from wenet_hs.tree import Tree
from wenet_hs.tree.nary import NaryTree

Make = Callable[..., Path]
BEST = ' class="best"'
VOID = {"meta", "wbr", "br"}


class Checker(HTMLParser):
    """Every tag that is opened is closed, and the text is gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def text_of(page: str) -> str:
    checker = Checker()
    checker.feed(page)
    assert not checker.open
    return " ".join(" ".join(checker.text).split())


def build(*folders: Path, simulated: bool = False, title: str = "a against b") -> str:
    return build_page(
        collect(list(folders)), title=title, date="2026-01-02", command="wenet-hs report", simulated=simulated
    )


def test_two_heads_side_by_side(make_experiment: Make) -> None:
    page = build(make_experiment("a"), make_experiment("b", head="softmax"))
    text = text_of(page)
    assert "a (hsoftmax head), b (softmax head)" in text
    assert "5.00 % CER, macro average" in text, "the mean of 1/10 and 0/16"
    for heading in (
        "Error rates",
        "Decoding speed",
        "Training",
        "Tree of the output layer",
        "Utterances",
        "Conditions",
    ):
        assert f"<h2>{heading}" in page
    assert "attention 100.0 25.0 0.250 10 cpu 2" in text
    assert "head hsoftmax softmax" in text and "head_conf.bias — True" in text
    assert "encoder_conf.num_blocks" not in text, "it is the same in both"
    assert text.count("CER|unit:grapheme|spaces:ignored|case:kept|punct:kept|norm:nfc|lang:ca,ky|v:") == 4
    assert "git 1a2b3c4 1a2b3c4" in text
    assert "last validation bits a unit last validation accuracy, % a hsoftmax 50 5 5.0 8.000 0.800 50.00" in text
    assert "Not on this page" not in text
    assert "simulated" not in text


def test_the_page_needs_no_network(make_experiment: Make) -> None:
    page = build(make_experiment("a"))
    assert not re.search(r"(src|href)=|url\(|@import|<script|<link", page)
    assert page.count("<svg") == 1 + 6 + 1, "intervals, six curves, one tree"


def test_the_lower_rate_of_a_mode_is_bold(make_experiment: Make) -> None:
    page = build(make_experiment("a"), make_experiment("b", head="softmax", attention={}))
    row = next(line for line in page.splitlines() if line.startswith("<tr><th>ca</th>"))
    assert re.findall(r'<td( class="best")?>([0-9.]+)', row) == [
        (BEST, "30.00"), (BEST, "30.00"), (BEST, "10.00"), ("", "100.00"),
    ]  # fmt: skip


def test_simulated_speech_is_said_beside_every_result(make_experiment: Make) -> None:
    page = build(make_experiment("a"), simulated=True)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    results = [text for text in captions if not text.startswith(("Settings", "Where each", "a: huffman"))]
    assert len(results) == 4 + 1 + 6, "errors, speed, training and conditions as tables, one figure, six curves"
    assert all("(simulated speech)" in text for text in results)
    assert all("(simulated speech)" in text for text in re.findall(r"<strong>(.*?)</strong>", page))
    assert all("(simulated speech)" in text for text in re.findall(r"<summary>(.*?)</summary>", page))


def test_what_is_absent_is_said_and_left_out(make_experiment: Make) -> None:
    folder = make_experiment("a")
    for name in ("metrics.jsonl", "tree.json", "test/rtf.json"):
        (folder / name).unlink()
    page = build(folder)
    text = text_of(page)
    assert "Not on this page: a has no metrics.jsonl (training curves); a has no tree.json (the tree); a has no" in text
    assert "<h2>Training" not in page and "<h2>Tree" not in page and "<h2>Decoding" not in page


def test_a_folder_without_scores_still_has_its_curves(make_experiment: Make) -> None:
    folder = make_experiment("a")
    for path in folder.glob("test/*/score.json"):
        path.unlink()
    page = build(folder)
    text_of(page)
    assert "<h2>Training" in page and "<h2>Error" not in page and "<h2>Utterances" not in page


def test_everything_from_outside_is_escaped(make_experiment: Make, tmp_path: Path) -> None:
    folder = make_experiment("<b>&x", attention={"ca1": "<script>alert(1)</script>", "ca2": "<i>"})
    with (folder / "train.yaml").open("a") as file:
        file.write('  note: "<img src=x onerror=1>"\n')
    page = build(folder, title="<u>&")
    text_of(page)
    for hostile in ("<script>", "<img", "<i>", "<u>", "<b>"):
        assert hostile not in page
    assert "&lt;img src=x onerror=1&gt;" in page


def utterance(ref: str, hyp: str | None) -> ScoredUtterance:
    counts = count_errors(split_units(ref, "cer"), split_units(hyp or "", "cer"))
    return ScoredUtterance("ca", ref, hyp, counts)


def columns(html: str) -> list[tuple[str, str, str]]:
    return re.findall(r'<span class="(.*?)"><span>(.*?)</span><span>(.*?)</span></span>', html)


def test_letters_are_grouped_and_words_apart() -> None:
    cer = Rules(metric="cer")
    assert columns(aligned(utterance("bon dia", "bo diae"), cer)) == [
        ("u", "bo", "bo"), ("u D gap", "n", "·"), ("u", "dia", "dia"), ("u I gap", "·", "e"),
    ]  # fmt: skip
    assert columns(aligned(utterance("ab cd", "ab cd"), cer)) == [("u gap", "ab", "ab"), ("u gap", "cd", "cd")]
    assert columns(aligned(utterance("ab", None), cer)) == [("u D gap", "ab", "·")]
    assert columns(aligned(utterance("", "ab"), cer)) == [("u I", "·", "ab")]


def test_phones_stand_apart_and_counted_spaces_can_be_seen() -> None:
    assert columns(aligned(utterance("tʃ a", "tʃ o"), Rules(metric="per"))) == [
        ("u gap", "tʃ", "tʃ"), ("u S gap", "a", "o"),
    ]  # fmt: skip
    spaced = Rules(metric="cer", spaces="count")
    assert columns(aligned(utterance("a b", "ab"), spaced)) == [("u", "a", "a"), ("u D", "␣", "·"), ("u", "b", "b")]


def test_utterances_are_worst_first_and_only_the_wrong_ones() -> None:
    report = score({"a": "abcd", "b": "abcd", "c": "abcd"}, {"a": "abcx", "b": "abcd"}, rules=Rules(metric="cer"))
    html = worst_utterances(report)
    assert re.findall(r'"quiet">(.*?)<', html) == [
        "c · all · CER 100.00 % · N 4 S 0 D 4 I 0 · no hypothesis",
        "a · all · CER 25.00 % · N 4 S 1 D 0 I 0",
    ]
    assert worst_utterances(report, most=1).count("quiet") == 1


def test_best_mode_ignores_an_undefined_rate(make_experiment: Make) -> None:
    folder = make_experiment("a")
    empty = score({"k": ""}, {"k": ""}, rules=Rules(metric="cer"))
    assert empty.micro.counts == ErrorCounts()
    (folder / "test/attention/score.json").write_text(empty.to_json())
    (experiment,) = collect([folder])
    assert experiment.best_mode == "ctc_greedy_search"
    assert "n/a" in text_of(build(folder))


def test_a_tree_of_classes_is_drawn(make_experiment: Make) -> None:
    folder = make_experiment("a")
    units = Tree.load(folder / "tree.json").units
    NaryTree.frequency_bins([0, 0, 3, 5, 7], 2, units=units).save(folder / "tree.json")
    text = text_of(build(folder))
    assert "a: classes, 5 units; depth 2, mean code length" in text
    (folder / "tree.json").unlink()
    settings = (folder / "train.yaml").read_text().replace("head: hsoftmax", "head: class")
    (folder / "train.yaml").write_text(settings)
    assert "a has no tree.json (the tree)" in text_of(build(folder))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_any_number_of_experiments(count: int, make_experiment: Make) -> None:
    page = build(*(make_experiment(f"e{number}") for number in range(count)))
    text_of(page)
    assert page.count('class="card"') == count
    assert page.count('<div class="tree">') == 1, "equal trees are drawn once"
