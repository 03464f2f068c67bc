# SPDX-License-Identifier: Apache-2.0
"""`score`, `compare`, `compute-cer`, `compute-wer` and `check`: what they print, JSON, pages."""

import json
from collections.abc import Sequence

from case_recorder import CaseRecorder
from made_audio import write_noise

REFERENCES = (
    *("Bon dia, amics", "l'eau claire", "adéu", "una casa blanca", "el gos negre", "la lluna"),
    *("салам дүйнө", "кыргыз тили", "об'єкт", "жаңы жыл", "бир эки үч", "тоо суу"),
)
PHONES = (
    "t ʃ a",
    "pʰ a t i",
    "tʃ i d͡ʒ",
    "m a n ɾ",
    "k ʷ a",
    "s i s i",
    "n u ŋ",
    "a b",
    "e f",
    "o p",
    "u k",
    "i t",
)
SPEAKERS = 6
CHANGES = (("a", "o"), ("e", ""), ("к", "k"), ("у", "уу"), ("ы", "и"), ("i", "e"), ("l", "r"))


def record_scores(case: CaseRecorder) -> None:
    """Error rates of all metrics with every table, and the forms of NIST."""
    write_transcripts(case)
    score = "score --ref ref.txt --hyp hyp1.txt"
    by = "--data_list ref.list --by lang speaker length"
    tables = f"{by} --confusions 5"
    case.run("cer", f"{score} --metric cer {tables} --json cer.json --align cer.align")
    case.run("wer", f"{score} --metric wer {tables} --json wer.json --align -")
    case.run("plain", f"{score} --metric cer --name plain")
    rules = "--spaces count --normalize nfc+lower --punctuation remove --num_resamples 50"
    case.run("rules", f"{score} --metric cer {rules} --data_list ref.list --json rules.json")
    per = "score --metric per --ref phones.txt --hyp phones-hyp.txt"
    case.run("per", f"{per} --features --confusions 4 --json per.json")
    lines = (case.folder / "hyp1.txt").read_text("utf-8").splitlines()
    fewer = [*lines[:-2], "other some text"]
    (case.folder / "fewer.txt").write_text("\n".join(fewer) + "\n", "utf-8")
    case.run("extra", "score --metric cer --ref ref.txt --hyp fewer.txt", expected=2)
    case.run("allowed", "score --metric cer --ref ref.list --hyp fewer.txt --allow_extra")
    (case.folder / "excluded.tsv").write_text("key\twhy\nu01\tlong\n", "utf-8")
    case.run("excluded", f"{score} --metric cer --exclude excluded.tsv")
    _write_nist(case)
    case.run("trn", "score --metric wer --ref ref.trn --hyp hyp.trn")
    case.run("ctm", "score --metric wer --ref ref.stm --hyp hyp.ctm")
    case.run("wenet-cer", "compute-cer --char=1 --v=1 ref.txt hyp1.txt")
    (case.folder / "cluster.txt").write_text("<Vowels> a e i o u </Vowels>\n", "utf-8")
    others = "--cs=0 --v=2 --rt=1 --maxw=3 --padding-symbol=underline --cluster cluster.txt"
    case.run("wenet-wer", f"compute-wer {others} ref.txt fewer.txt")


def record_comparisons(case: CaseRecorder) -> None:
    """The paired bootstrap of two systems, by language and speaker, and over seeds."""
    write_transcripts(case)
    compare = "compare --ref ref.txt --hyp_a hyp1.txt --hyp_b hyp2.txt"
    data = "--data_list ref.list"
    case.run("cer", f"{compare} --metric cer {data} --by lang --json cer.json")
    names = "--name_a first --name_b second --num_resamples 200"
    case.run("wer", f"{compare} --metric wer {names} --json wer.json")
    rules = "--spaces count --normalize nfc+lower --punctuation remove"
    case.run("rules", f"{compare} --metric cer {rules} {data}")
    seeds = "--hyp_a hyp1.txt hyp2.txt hyp3.txt hyp4.txt hyp5.txt"
    others = "--hyp_b hyp3.txt hyp4.txt hyp5.txt hyp6.txt hyp7.txt"
    over_seeds = f"compare --ref ref.txt --metric cer {seeds} {others} {data} --by lang"
    case.run("seeds", f"{over_seeds} --json seeds.json")
    unequal = f"compare --ref ref.txt --metric cer {seeds} --hyp_b hyp1.txt"
    case.run("unequal-seeds", unequal, expected=2)


def record_checks(case: CaseRecorder) -> None:
    """`check` of lists with the findings that small lists can have, and `check-options`."""
    _write_lists_with_faults(case)
    check = "check train/data.list dev/data.list test/data.list --num_workers 0"
    case.run("faults", f"{check} --out check.tsv --html check.html", expected=2)
    case.run("any-amount", f"{check} --min_minutes 0 --max_players 2 --html few.html", expected=3)
    case.run("good", "check train/data.list --num_workers 0 --min_minutes 0 --min_count 2")
    case.run("too-little", "check train/data.list --num_workers 0", expected=2)
    case.make("units --data_list train/data.list --kind char --out units.txt")
    units = f"{check} --min_minutes 0 --units units.txt --out units.tsv"
    case.run("units", units, expected=3)
    case.run("phones", f"{check} --min_minutes 0 --unit phone", expected=3)
    (case.folder / "a.yaml").write_text("model_conf: {ctc_weight: 0.4}\n", "utf-8")
    options = "check-options --config a.yaml --head softmax hsoftmax --tree brown --unit char"
    case.run("options", f"{options} --seeds 1 2 --modes joint")
    wrong = "check-options --config a.yaml --modes jonit --seeds x --unit bpe"
    case.run("wrong-options", wrong, expected=2)


def write_transcripts(case: CaseRecorder) -> None:
    """ref.txt, ref.list, hyp1.txt to hyp7.txt with more and more changes, and files of phones."""
    keys = [f"u{number:02d}" for number in range(len(REFERENCES))]
    _write_text(case, "ref.txt", keys, REFERENCES)
    lines = []
    for number, key in enumerate(keys):
        lang = "ca" if number < len(keys) // 2 else "ky"
        utterance = {"key": key, "wav": "x.wav", "txt": REFERENCES[number], "lang": lang}
        utterance["speaker"] = f"{lang}-s{number % SPEAKERS}"
        lines.append(json.dumps(utterance, ensure_ascii=False) + "\n")
    (case.folder / "ref.list").write_text("".join(lines), "utf-8")
    for seed in range(1, len(CHANGES) + 1):
        texts = [_change(text, number, seed) for number, text in enumerate(REFERENCES)]
        _write_text(case, f"hyp{seed}.txt", keys, texts)
    _write_text(case, "phones.txt", keys, PHONES)
    changed = [phones.replace("t", "d").replace("n u", "m") for phones in PHONES]
    _write_text(case, "phones-hyp.txt", keys, changed)


def _change(text: str, number: int, seed: int) -> str:
    """Every third text stays; the others have some of the changes."""
    if number % 3 == seed % 3:
        return text
    for old, new in CHANGES[number % 4 : number % 4 + 1 + seed // 2]:
        text = text.replace(old, new)
    return text


def _write_text(
    case: CaseRecorder,
    name: str,
    keys: Sequence[str],
    texts: Sequence[str],
) -> None:
    lines = [f"{key} {text}\n" for key, text in zip(keys, texts, strict=True)]
    (case.folder / name).write_text("".join(lines), "utf-8")


def _write_nist(case: CaseRecorder) -> None:
    """Files of sclite: trn with keys at the end, stm and ctm with times."""
    (case.folder / "ref.trn").write_text("bon dia (s1-u1)\nuna casa gran (s1-u2)\n", "utf-8")
    (case.folder / "hyp.trn").write_text("bon die (s1-u1)\nuna gran (s1-u2)\n", "utf-8")
    stm = ";; made by hand\nrec 1 spk 0.0 1.5 <o,f0> bon dia\nrec 1 spk 1.5 3.0 <o,f0> una casa\n"
    (case.folder / "ref.stm").write_text(stm, "utf-8")
    ctm = "rec 1 0.1 0.4 bon\nrec 1 0.6 0.4 die\nrec 1 1.7 0.4 una 0.9\nrec 1 2.2 0.4 casa\n"
    (case.folder / "hyp.ctm").write_text(ctm, "utf-8")


def _set_of(number: int) -> str:
    """The set of an utterance: 16 of train, 4 of dev, 4 of test."""
    if number < 16:
        return "train"
    return "dev" if number < 20 else "test"


def _write_lists_with_faults(case: CaseRecorder) -> None:
    """Three sets of segments of one recording; test has utterances with faults."""
    write_noise(case.folder / "tape.wav", 60.0, rate=16000)
    write_noise(case.folder / "stereo.wav", 2.0, rate=8000, channels=2)
    words = ("la casa roja", "el perro come", "una mesa larga", "dos libros rojos")
    sets: dict[str, list[dict[str, object]]] = {"train": [], "dev": [], "test": []}
    for number in range(24):
        name = _set_of(number)
        text = f"{words[number % 4]} {'abcdel'[number % 6]}{'abcdel'[number // 6]}"
        start = 2.3 * number
        utterance: dict[str, object] = {
            "key": f"u{number}",
            "wav": "tape.wav",
            "txt": text,
            "start": round(start, 3),
            "end": round(start + 0.08 * len(text), 3),
            "speaker": "ana" if number < 18 else "luz",
            "lang": "es",
        }
        sets[name].append(utterance)
    first = sets["test"][0]
    sets["test"] += [
        {**first, "key": "missing", "wav": "no.wav"},
        {**first, "key": "empty", "txt": ""},
        {**first, "key": "long", "txt": "la casa blanca es muy larga", "start": 3.0, "end": 3.3},
        {**first, "key": "laugh", "txt": "la casa <b> [risa]", "start": 5.0, "end": 6.2},
        {**first, "key": "cyrillic", "txt": "lа cаsа", "start": 7.0, "end": 8.2},
        {**first, "key": "stereo", "wav": "stereo.wav", "start": 0.0, "end": 1.5},
    ]
    for name, utterances in sets.items():
        (case.folder / name).mkdir()
        lines = [json.dumps(utterance, ensure_ascii=False) + "\n" for utterance in utterances]
        (case.folder / name / "data.list").write_text("".join(lines), "utf-8")
