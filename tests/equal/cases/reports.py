# SPDX-License-Identifier: Apache-2.0
"""`report` and `pack`: pages, results files, Markdown tables, packed models with their cards."""

import re
from pathlib import Path

from case_recorder import CaseRecorder
from cases.recognition import recognize_line
from tiny_experiment import make_experiment, make_recogniser

TREE = "--tree tree.json"
SEEDS = (1, 2)
TABLE = """title: A study
text: Made up.
systems: {softmax: flat softmax, hsoftmax: tree}
modes: [attention_rescoring, ctc_greedy_search]
"""
MEASURED = "seconds|per_second|wait_share|outside_share|memory_mb"
"""Ends of the names of what depends on the clock or on earlier work."""
MODES = "--modes attention_rescoring ctc_greedy_search"


def record_reports(case: CaseRecorder) -> None:
    """Pages of one experiment, of two, and of two systems with seeds; results files and tables."""
    make_experiment(case)
    for seed in SEEDS:
        for head in ("softmax", "hsoftmax"):
            flags = f"--seed {seed} --head {head}"
            flags += f" {TREE}" if head == "hsoftmax" else ""
            model = f"exp/{head}-seed{seed}"
            make_recogniser(case, model, "max_epoch=6", flags=flags)
            case.make(recognize_line(model, f"{model}/test", MODES))
            set_times(case.folder / model)
            score = f"score --metric cer --ref test.list --hyp {model}/test --by lang speaker"
            if (seed, head) == (1, "softmax"):
                case.run("scored-folder", score)
            else:
                case.make(score)
    data = "--data_list test.list"
    case.run("one", f"report --exp exp/softmax-seed1 {data} --out one.html")
    two = "--exp exp/softmax-seed1 --exp exp/hsoftmax-seed1"
    case.run("two", f"report {two} {data} --audio_mb 0 --out two.html")
    limits = "--mode ctc_greedy_search --utterances 2 --title 'A title'"
    case.run("limits", f"report {two} {data} {limits} --out limits.html")
    seeds = "--exp exp/softmax-seed2 --exp exp/hsoftmax-seed2"
    case.run("seeds", f"report {two} {seeds} {data} --out seeds.html --results study/table")
    (case.folder / "study" / "table" / "table.yaml").write_text(TABLE, "utf-8")
    (case.folder / "intro.md").write_text("# A heading\n\nSome text.\n", "utf-8")
    tables = "report --tables study/table --markdown"
    case.run("tables", f"{tables} RESULTS.md --intro intro.md --more intro.md")
    case.run("published", f"{tables} again/RESULTS.md --published study")
    case.run("no-exp", "report --exp exp --out none.html", expected=2)


def set_times(model_dir: Path) -> None:
    """Replace the times in metrics.jsonl and rtf.json, which pages and results files show."""
    for path in (model_dir / "metrics.jsonl", model_dir / "test" / "rtf.json"):
        text = path.read_text("utf-8")
        text = re.sub(rf'({MEASURED})": [\d.e-]+', r'\1": 0.5', text)
        text = re.sub(r"(?<=: )\d+\.\d{5,}(e-\d+)?(?=,?\n)", "0.25", text)
        path.write_text(text, "utf-8")


def record_packs(case: CaseRecorder) -> None:
    """A folder, a ZIP and a card, and what reads a packed model."""
    make_experiment(case)
    make_recogniser(case, "exp", "max_epoch=6", flags=f"--head hsoftmax {TREE}")
    case.make(recognize_line("exp", "exp/test", MODES))
    case.make("score --metric cer --ref test.list --hyp exp/test --by lang")
    case.run("folder", "pack --model_dir exp --out packed")
    facts = "--license cc-by-4.0 --data 'Tones of two languages' --datasets owner/tones"
    names = "--languages aaa bbb --base_model owner/base"
    case.run("zip", f"pack --model_dir exp --out packed.zip {facts} {names}")
    case.run("card", f"pack --model_dir exp --out CARD.md {facts}")
    card = (case.folder / "CARD.md").read_text("utf-8")
    (case.folder / "EDITED.md").write_text(card.replace("Tones", "Clear tones"), "utf-8")
    case.run("edited-card", "pack --model_dir exp --out edited --card EDITED.md")
    consent = "recording\tallowed\tnote\ntrain00.wav\tno\ta note\ntrain01.wav\tyes\t\n"
    (case.folder / "consent.tsv").write_text(consent, "utf-8")
    case.run("consent", "pack --model_dir exp --out consent --consent consent.tsv", expected=2)
    case.run("exists", "pack --model_dir exp --out packed", expected=2)
    case.run("overwrite", "pack --model_dir exp --out packed --overwrite --license MIT")
    transcribe = "transcribe --device cpu clips/test00.wav"
    case.run("transcribed-folder", f"{transcribe} --model_dir packed")
    case.run("transcribed-zip", f"{transcribe} --model_dir packed.zip")
