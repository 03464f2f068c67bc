# SPDX-License-Identifier: Apache-2.0
"""The page: self-contained, escaped, well-formed, with the numbers in their places; and its
plain-text summary.
"""

import base64
import hashlib
import io
import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import soundfile
from made_up_experiment import REF, replace_text, write_data, write_experiment, write_report
from made_up_runs import change_run

from wenet_hs.report.aligned import align_columns
from wenet_hs.report.page import build_page
from wenet_hs.report.page_table import compare_columns
from wenet_hs.report.sections import training_section
from wenet_hs.report.summary import format_summary
from wenet_hs.results.experiment import read_experiments
from wenet_hs.results.report_data import gather_data
from wenet_hs.runs.record import FirstWeights, Start
from wenet_hs.score import ErrorCounts, Report, Rules, ScoredUtterance, score
from wenet_hs.tree import NaryTree, Tree

CER = Rules(metric="cer")


class Checker(HTMLParser):
    """Checks that every opened tag is closed, and collects the text."""

    def reset(self) -> None:
        super().reset()
        self.open, self.text = list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in {"meta", "wbr", "br", "link", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)


def text_of(page: str) -> str:
    checker = Checker()
    checker.feed(page)
    assert not checker.open
    return " ".join(" ".join(checker.text).split())


def build(*folders: Path, title: str = "a against b", audio_mb: float = 0, **options: Any) -> str:
    data = gather_data(read_experiments(list(folders)), **options)
    return build_page(data, title=title, command="wenet-hs report", audio_mb=audio_mb)


def test_two_heads_side_by_side(tmp_path: Path) -> None:
    stats = write_data(tmp_path / "data")
    folders = [write_experiment(tmp_path / "a"), write_experiment(tmp_path / "b", head="softmax")]
    page = build(*folders, mode="attention", stats=stats)
    text = text_of(page)
    sections = "Error rates|Utterances|Confusions between units|Length against error|Decoding speed|Training|"
    sections += "Tree of the output layer|Statistics of the corpora|Conditions"
    assert re.findall("<h2>(.*?)</h2>", page) == sections.split("|")
    assert re.findall('<section id="(.*?)"', page) == re.findall('<a href="#(.*?)"', page), (
        "the menu"
    )
    for phrase in (
        "a (hsoftmax head), b (softmax head)",
        "b 5.00 %, a 5.00 %; b − a +0.00 points",  # the mean of 1/10 and 0/16
        "experiment mode ca ky a attention 0.3000 0.2000",
        "experiment mode speech, s decoding, s RTF a attention 100.0 25.0 0.2500 b attention",
        "In all of them: device cpu, threads 2, beam size 10, finished list yes, n-best —, lm units.arpa.",
        "a 9.00",
        "head hsoftmax softmax",
        "head_conf.bias — yes",
        "git 1a2b3c4 1a2b3c4",
        "sha256 of units.txt 0123abcd 0123abcd",
        "seed 777 777",
        "a hsoftmax 50 5 5.0 8.000 0.800 50.00",
        "Speech: not marked as simulated by its stats.json.",
        "ca 9.00 0.2500 1.5000 0.1000 0.2000 10 1 2 n/a n/a n/a ky n/a n/a 1.5000 0.1000",
        "all n/a n/a 1.5000",
        "substituted a e 1",
        hashlib.sha256((tmp_path / "a/metrics.jsonl").read_bytes()).hexdigest(),
        str(stats),
    ):
        assert phrase in text
    for phrase in ("encoder_conf.num_blocks", "has no", "simulated speech", "a dia die"):
        assert phrase not in text
    assert (
        text.count("CER|unit:grapheme|spaces:ignored|case:kept|punct:kept|norm:nfc|lang:ca,ky|v:")
        == 4
    )
    assert text.count("I 0 · confidence 0.50") == 8, "four utterances, two systems"
    assert re.search(r"micro average 3.85 .{40,99} 4 26 a b 0 %", text), (
        "utterances and units of all languages"
    )
    assert not re.search(
        r"url\(|@import|<script src|http:|https:", page.replace("http://www.w3.org/2000/svg", "")
    )
    assert re.findall(r'(?:src|href)="(?!#)([^"]*)', page) == ["data:,"], (
        "the icon, so that browsers do not ask for it"
    )
    assert page.count("<svg") == 1 + 6 + 4 + 1 + 2, (
        "intervals, curves over steps and time, one tree, two of lengths"
    )


def scored_with(reference: Mapping[str, str], hypothesis: Mapping[str, str]) -> Report:
    langs = {key: key[:2] for key in reference}
    return score(reference, hypothesis, rules=CER, langs=langs, num_resamples=20)


def test_differences_of_single_trainings(tmp_path: Path) -> None:
    folders = [write_experiment(tmp_path / "a"), write_experiment(tmp_path / "b", head="softmax")]
    reference = {f"{lang}{i:02}": "abcdefghij" for lang in ("xx", "yy") for i in range(12)}
    write_report(folders[0], scored_with(reference, dict.fromkeys(reference, "abcde")))
    write_report(folders[1], scored_with(reference, reference))
    page = build(*folders, mode="attention")
    assert re.search(
        r'xx</th>.*<td data-value="-0.5">-50.00<span class="interval">\[-50.00, -50.00\]', page
    )
    assert "One training per system decides nothing between systems: " in text_of(page)
    write_report(folders[1], scored_with(reference, {}))
    text = text_of(build(*folders, mode="attention"))
    assert re.search(
        r"a \(A\) and b \(B\) are not compared in attention: B \(.*\): no hypothesis for 24", text
    )


def test_systems_with_several_seeds_have_every_seed(tmp_path: Path) -> None:
    heads = [(head, number) for head in ("hsoftmax", "softmax") for number in range(3)]
    folders = [write_experiment(tmp_path / f"{head}{number}", head=head) for head, number in heads]
    reference = {f"xx{i:02}": "abcdefghij" for i in range(3)}
    for number, folder in enumerate(folders):
        hypothesis = {
            key: "x" if index < number % 3 else text
            for index, (key, text) in enumerate(reference.items())
        }
        write_report(folder, scored_with(reference, hypothesis))
        replace_text(folder / "train.yaml", "seed: 777", f"seed: {777 + number % 3}")
    page = build(*folders, mode="attention")
    assert page.count('<div class="tree"') == 1, "equal trees are drawn once"
    text = text_of(page)
    assert "one training each" not in text
    seeds = "3 33.33 33.33 777: 0.00, 778: 33.33, 779: 66.67"
    assert f"attention hsoftmax0 {seeds} attention softmax0 {seeds}" in text
    assert "attention softmax0 − hsoftmax0 3 +0.00 n/a points only n/a n/a " in text
    assert "Holm: corrected for 0 comparisons." in text and "Languages are fixed: " in text
    assert "Only trainings with the seed of hsoftmax0 are paired here." in text
    assert len(re.findall("<th[^>]*>softmax. − hsoftmax0<", page)) == 1, (
        "the one with the same seed"
    )
    lines = [
        " ".join(line.split())
        for line in format_summary(gather_data(read_experiments(folders))).splitlines()
    ]
    assert (
        f"attention hsoftmax0 {seeds}" in lines
        and "mode system seeds mean standard deviation seed: rate" in lines
    )
    assert "attention softmax0 − hsoftmax0 3 +0.00 n/a points only n/a n/a" in lines
    assert lines[-1].startswith(
        "differences in points. p, Holm: corrected for 0 comparisons. Languages are fixed"
    )
    replace_text(folders[4] / "train.yaml", "seed: 778", "seed: 778\ndtype: bf16")
    replace_text(folders[1] / "train.yaml", "seed: 778", "seed: 778\ndtype: fp32")
    text = text_of(
        build(*folders, mode="attention")
    )  # other settings: hsoftmax1 and softmax1 are single
    assert "attention softmax0 − hsoftmax0 2 " in text and "attention hsoftmax0 2 33.33" in text
    text = text_of(build(*folders[2:], mode="attention"))
    assert "One training per system decides nothing" in text, "one seed of one of the systems"


def test_few_speakers_have_no_interval(tmp_path: Path) -> None:
    reference = {f"{lang}{i:02}": "abcdefghij" for lang in ("xx", "yy") for i in range(12)}
    folders = [write_experiment(tmp_path / "a"), write_experiment(tmp_path / "b", head="softmax")]
    write_report(folders[0], scored_with(reference, reference))
    write_report(folders[1], scored_with(reference, dict.fromkeys(reference, "abcde")))
    data_list = tmp_path / "data.list"
    for num_speakers, is_shown in ((6, True), (4, False)):
        speakers = {key: int(key[2:]) % (num_speakers if key < "y" else 2) for key in reference}
        clips = [
            {"key": key, "wav": "x.wav", "txt": "", "speaker": f"{key[:2]}{of}"}
            for key, of in speakers.items()
        ]
        data_list.write_text("".join(json.dumps(clip) + "\n" for clip in clips))
        text = text_of(build(*folders, mode="attention", data_list=data_list))
        head = "a b difference, points p by speaker, points p by speaker utterances units xx 0.00 "
        assert (head in text) == is_shown, "languages without five speakers have no interval"
        assert bool(re.search(r" yy .{50,80} n/a n/a 12 120 ", text)) == is_shown
        assert (
            "n/a by speaker: fewer than 5 speakers, so the averages' intervals" in text
        ) == is_shown
        assert ", both over utterances only." in text, "one language has few speakers"


def test_conditions_that_differ_are_columns(tmp_path: Path) -> None:
    folders = [write_experiment(tmp_path / "a"), write_experiment(tmp_path / "b")]
    path = folders[1] / "test/rtf.json"
    changed = {"num_threads": 8, "finished_list": False, "max_segment_s": 60.0, "length_bonus": 0.0}
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    (folders[1] / "test/attention/text").write_text("ca1 new\n")
    text = text_of(build(*folders))
    assert "RTF threads finished list maximum seconds of a segment length bonus a attention" in text
    assert (
        "a attention 100.0 25.0 0.2500 2 yes — — b attention 100.0 25.0 0.2500 8 no 60 0 " in text
    )
    assert "In all of them: device cpu, beam size 10, n-best —, lm units.arpa." in text
    assert text.count("b, attention: decoded again after its") == text.count("decoded again") == 1


def test_simulated_speech_is_named_once(tmp_path: Path) -> None:
    stats = write_data(tmp_path / "data", simulated=True, corpus="synthetic (simulated speech)")
    page = build(write_experiment(tmp_path / "a"), mode="attention", stats=stats)
    assert page.count("(simulated speech)") == 1
    assert '<h1>a against b <span class="simulated">(simulated speech)</span></h1>' in page
    assert "Speech: simulated." in page and "synthetic, 2 languages." in page


def test_pretraining_on_simulated_speech_is_named(tmp_path: Path) -> None:
    stats = write_data(tmp_path / "data")
    folders = [write_experiment(tmp_path / name) for name in ("a", "b")]
    for folder, note in zip(
        folders, ("(real, and real + simulated)", "(real + simulated)"), strict=True
    ):
        base = FirstWeights(kind="checkpoint", name="exp/base-simulated-14-seed1")
        change_run(folder, first_weights=base)
        page = build(*folders, mode="attention", stats=stats)
        assert page.count(note) == 1 and f'<span class="simulated">{note}</span></h1>' in page
        assert "Real + simulated: the training began from a model of simulated speech." in page
        assert format_summary(gather_data(read_experiments(folders), stats=stats)).startswith(
            f"CER in % {note}\n"
        )


def test_absent_files_are_named_and_their_sections_left_out(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "a")
    for name in (
        "metrics.jsonl",
        "tree.json",
        "test/rtf.json",
        "test/attention/hyps.jsonl",
        "train.yaml",
    ):
        (folder / name).unlink()
    page = build(folder, mode="attention", audio_mb=3)
    names = (
        "train.yaml (settings, versions)",
        "metrics.jsonl (training curves)",
        "tree.json (the tree)",
    )
    assert f"a has no {'; no '.join(names)}; no test/rtf.json (speed)" in text_of(page)
    assert re.findall('<section id="(.*?)"', page) == [
        "errors",
        "utterances",
        "confusions",
        "lengths",
        "conditions",
    ]
    for line in (
        "No audio: the test list is not known; give --data_list.",
        "a has no test/attention/hyps.jsonl: no confidence.",
        "Speech: unknown whether it is simulated, no stats.json was found; give --stats.",
    ):
        assert f">{line}</p>" in page
    decoded_only = write_experiment(tmp_path / "b")
    for path in decoded_only.glob("test/*/score.json"):
        path.unlink()
    page = build(decoded_only)
    assert "Over training steps" in text_of(page)
    assert "b has no test/<mode>/score.json (error rates)" in text_of(page)
    assert format_summary(gather_data(read_experiments([decoded_only]))) == ""
    assert re.findall('<section id="(.*?)"', page) == ["speed", "training", "trees", "conditions"]
    assert re.findall('<a href="#(.*?)"', page) == ["speed", "training", "trees", "conditions"]
    assert '<div class="verdict">' not in page


def test_one_language_has_one_row_and_no_choice_of_languages(tmp_path: Path) -> None:
    folders = [write_experiment(tmp_path / "a"), write_experiment(tmp_path / "b", head="softmax")]
    reference = {f"xx{i:02}": "abcdefghij" for i in range(12)}
    for folder in folders:
        write_report(folder, scored_with(reference, reference | {"xx01": "abcdefghix"}))
        speeds = json.loads((folder / "test/rtf.json").read_text())
        speeds["modes"]["attention"]["sum_rtf_by_lang"] = {"xx": 0.3}
        (folder / "test/rtf.json").write_text(json.dumps(speeds))
    stats = write_data(tmp_path / "data")
    corpora = json.loads(stats.read_text())
    stats.write_text(json.dumps(corpora | {"langs": {"ca": corpora["langs"]["ca"]}}))
    page = build(*folders, mode="attention", stats=stats)
    text = text_of(page)
    assert page.count('<th scope="row">xx</th>') == 2, "the shown mode, all modes"
    for absent in (
        "acro average",
        "icro average",
        "Worst language",
        "Real-time factor by language",
        ">all</th>",
    ):
        assert absent not in page.replace("Macro average of each seed", ""), absent
    assert "commonvoice, 1 language." in text and "<label hidden>Language" in page
    assert '<th scope="col" class="text">kind</th>' in page, (
        "confusions without a column of languages"
    )
    header = format_summary(gather_data(read_experiments(folders), stats=stats)).splitlines()[1]
    assert header.split() == ["mode", "experiment", "xx", "95%", "interval", "RTF"]


def test_speeds_are_shown_if_equal_work_takes_equal_time(tmp_path: Path) -> None:
    folders = [write_experiment(tmp_path / "a"), write_experiment(tmp_path / "b", head="softmax")]
    paths = [folder / "test/rtf.json" for folder in folders]
    rtf = json.loads(paths[0].read_text())
    load = "because they cannot be compared. Per second of speech the same work "
    for seconds, others, fault in (
        ((9.0,), (9.8,), ""),
        (
            (9.0,),
            (22.5,),
            f"{load}(encoder) takes 0.2250 s in b, 0.0900 s in a. These times differ only by the",
        ),
        ((9.0,), (0.0,), ": rtf.json of b has no encoder time. Decode again."),
        ((1.0, 0.5, 0.4), (1.0, 0.5, 0.5), ""),
        (
            (2.0, 0.9, 0.375),
            (2.0, 0.9, 0.016),
            f"{load}(features, encoder, ctc) takes 0.0328 s in a, 0.0292 s in b.",
        ),
        ((2.0, 0.9, 0.0), (2.0, 0.9), ""),
    ):
        for path, of in zip(paths, (seconds, others), strict=True):
            stages = dict(zip(("encoder", "features", "ctc"), of, strict=False))
            path.write_text(json.dumps(rtf | {"seconds": stages}))
        text = text_of(build(*folders, mode="attention"))
        summary = format_summary(gather_data(read_experiments(folders)))
        assert ("a attention 100.0 25.0 0.2500" in text) == ("RTF" in summary) == (not fault)
        for shown in (text, summary):
            assert ("Speeds are not shown" in shown) == bool(fault)
            assert not fault or fault in shown.partition("Speeds are not shown")[2]
    for path, ctc in zip(paths, (0.4, 4.0), strict=True):
        path.write_text(json.dumps(rtf | {"seconds": {"encoder": 2.0, "ctc": ctc}}))
    assert "Speeds are not shown" in text_of(build(*folders, mode="attention"))
    with (folders[1] / "train.yaml").open("a") as file:
        file.write("ctc_conf: {head: hsoftmax}\n")
    assert "Speeds are not shown" not in text_of(build(*folders, mode="attention")), (
        "CTC is not the same work"
    )
    assert "a attention 100.0 25.0 0.2500" in text_of(build(folders[0], mode="attention"))


@pytest.mark.parametrize("num_ctc_only", (0, 2, 5))
def test_losses_that_were_not_computed_are_not_drawn(tmp_path: Path, num_ctc_only: int) -> None:
    folder = write_experiment(tmp_path / "a")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    absent = {"loss_att": 0.0, "accuracy": 0.0, "bits_per_unit": None}
    records = [of | (absent if of["step"] <= 10 * num_ctc_only else {}) for of in records]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(of) + "\n" for of in records))
    charts = training_section(gather_data(read_experiments([folder])))["step_charts"]
    lines = {caption: re.findall('<polyline[^>]* points="([^"]*)"', svg) for caption, svg in charts}
    counts = {
        caption.split(",")[0]: [len(points.split()) for points in of]
        for caption, of in lines.items()
    }
    drawn = 5 - num_ctc_only
    assert counts["Loss"] == counts["CTC loss"] == [5, 5]
    assert (
        counts.get("Attention loss", [])
        == counts.get("Attention accuracy", [])
        == [drawn, drawn] * bool(drawn)
    )


def test_the_error_rate_of_validations_is_drawn_in_percent(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "a")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    records = [
        of | ({"ctc_error_rate": 5 / of["step"]} if of["kind"] == "valid" else {}) for of in records
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(of) + "\n" for of in records))
    found = training_section(gather_data(read_experiments([folder])))
    for charts in (found["step_charts"], found["time_charts"]):
        caption, chart = charts[0]
        assert caption.startswith("Unit error rate of the validation set") and "%" in chart
        assert chart.count("<polyline") == 1, "training has none"


def test_all_input_is_escaped(tmp_path: Path) -> None:
    folder = write_experiment(
        tmp_path / "<b>&x", attention={"ca1": "<script>alert(1)</script>", "ca2": '<i>"'}
    )
    change_run(folder, starts=(Start(machine="<img src=x onerror=1>"),))
    stats = write_data(tmp_path / "data", corpus="<em>", licence="<u>")
    page = build(folder, title="<u>&", mode="attention", stats=stats)
    text_of(page)
    for hostile in ("<script>alert", "<img", "<i>", "<u>", "<b>", "<em>", '<i>"'):
        assert hostile not in page
    assert "&lt;img src=x onerror=1&gt;" in page


def test_columns_of_an_alignment() -> None:
    for ref, hyp, rules, columns in (
        ("bon dia", "bo diae", CER, ["C bo bo", "D n · |", "C dia dia", "I · e |"]),
        ("ab cd", "ab cd", CER, ["C ab ab |", "C cd cd |"]),
        ("ab", None, CER, ["D ab · |"]),
        ("", "ab", CER, ["I · ab"]),
        ("tʃ a", "tʃ o", Rules(metric="per"), ["C tʃ tʃ |", "S a o |"]),
        ("a b", "ab", Rules(metric="cer", spaces="count"), ["C a a", "D ␣ ·", "C b b"]),
    ):
        found = align_columns(ScoredUtterance("ca", ref, hyp, ErrorCounts()), rules)
        assert [
            " ".join([*texts, *(["|"] if has_gap else [])]) for *texts, has_gap in found
        ] == columns


def test_audio_is_embedded_up_to_the_limit(tmp_path: Path) -> None:
    folder = write_experiment(
        tmp_path / "a", attention={"ca1": "x", "ca2": "adéu", "ky1": REF["ky1"], "ky2": "кыргы"}
    )
    stats = write_data(tmp_path / "data")
    (tmp_path / "data/ky2.wav").write_bytes(b"cut off")
    page, small, none = (
        build(folder, mode="attention", stats=stats, audio_mb=mb) for mb in (0.012, 0.001, 0)
    )
    clips = re.findall(
        r'<audio controls preload="none" src="data:audio/mpeg;base64,([^"]*)" aria-label="(\w+)"',
        page,
    )
    assert [name for _, name in clips] == ["ca1", "ca2", "ky1"][: len(clips)] and 1 <= len(
        clips
    ) <= 3
    assert sum(len(content) for content, _ in clips) <= 12_000
    wave, rate = soundfile.read(io.BytesIO(base64.b64decode(clips[0][0])))
    assert rate == 16_000 and wave.ndim == 1 and 8000 <= len(wave) <= 11_000
    assert "1 audio files cannot be read." in page
    assert "<audio" not in small and "No audio: --audio_mb is 0." in none
    assert "4 more are left out: the page contains at most 0.001 MB of audio (--audio_mb)." in small


def test_rare_results(tmp_path: Path) -> None:
    folder = write_experiment(
        tmp_path / "a", attention=REF | {"ky1": "cалам дүйнo", "ca2": "adéu " * 4}
    )
    page = build(folder, mode="attention")
    assert "substituted с (Cyrillic) c (Latin) 1 7.14 100.00" in text_of(page), (
        "Cyrillic es as Latin c"
    )
    assert '<th scope="row">с <span class="script">Cyrillic</span></th>' in page
    assert "attention; 1 above 200 % drawn at 200 %." in text_of(page)
    write_report(folder, score({"k": ""}, {"k": ""}, rules=CER))
    units = Tree.load(folder / "tree.json").units
    NaryTree.frequency_bins([0, 0, 3, 5, 7], 2, units=units).save(folder / "tree.json")
    text = text_of(build(folder))
    assert (
        "a: classes, 5 units; depth 2, mean code length" in text
        and "No verdict: the references have no units." in text
    )


def test_the_confusion_map_contains_all_errors(tmp_path: Path) -> None:
    reference = {
        f"{lang}{i}": text
        for lang, text in (("xx", "abcdefghijklm"), ("yy", "стуфхцч"))
        for i in range(2)
    }
    hypothesis = {
        "xx0": "bbddffhhjjll",
        "xx1": "zabcdefghijklm",
        "yy0": "ттффццч",
        "yy1": "стуфхцчч",
    }
    report, folder = scored_with(reference, hypothesis), write_experiment(tmp_path / "a")
    write_report(folder, report)
    page = build(folder)
    (found,) = re.findall(r'<div class="map">(.*?)</table>', page, re.S)
    rows = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
        for row in re.findall(r"<tr>.*?</tr>", found, re.S)
    ]
    assert rows[0][1:17] == [row[0] for row in rows[1:17]], "16 units, in one order"
    assert (rows[0][17:], [row[0] for row in rows[17:]]) == (
        ["others", "left out"],
        ["others", "inserted"],
    )
    assert (
        sum(int(cell) for row in rows[1:] for cell in row[1:] if cell) == report.micro.counts.errors
    )
    assert (
        "The 16 units with the most errors as reference and as recognised; all rarer ones"
        in text_of(page)
    )


def test_rarer_units_that_are_only_left_out_are_others(tmp_path: Path) -> None:
    """20 units with errors; the rarest four, q to t, are never recognised for another one."""
    folder = write_experiment(tmp_path / "a")
    reference = {"xx0": "abcdefghijklmnopqrst", "xx1": "a"}
    write_report(folder, scored_with(reference, {"xx0": "", "xx1": "b"}))
    text = text_of(build(folder))
    assert "The 16 units with the most errors as reference and as recognised; all rarer" in text
    assert " p 1 others 4 " in text


def test_the_summary_has_a_row_per_mode_and_experiment(tmp_path: Path) -> None:
    folders = [
        write_experiment(tmp_path / "exp/a"),
        write_experiment(tmp_path / "exp/longer", head="softmax"),
    ]
    data = gather_data(
        read_experiments(folders), stats=write_data(tmp_path / "data", simulated=True)
    )
    first, header, *lines, caveat = format_summary(data).splitlines()
    assert first == "CER in % (simulated speech)"
    assert caveat.startswith("One training per system decides nothing between systems: ")
    assert header.split() == ["mode", "experiment", "ca", "ky", "macro", "95%", "interval", "RTF"]
    modes = ("ctc_greedy_search", "attention")
    assert [line.split()[:2] for line in lines] == [
        [mode, name] for mode in modes for name in ("a", "longer")
    ]
    assert lines[2].split()[2:5] == ["10.00", "0.00", "5.00"] and lines[2].split()[-1] == "0.250"
    assert len({line.index("]") for line in lines}) == 1, "columns are aligned"


def test_an_experiment_may_have_the_name_of_a_column() -> None:
    records = compare_columns(
        "setting", {"setting": {"a": "1"}, "other": {"a": "2", "b": "3"}}, "n/a"
    )
    assert [list(record.values()) for record in records] == [["a", "1", "2"], ["b", "n/a", "3"]]
