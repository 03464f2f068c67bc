# SPDX-License-Identifier: Apache-2.0
"""How fast is recognition: a tree against a softmax, by language, length and vocabulary; and
against WeNet's searches?

Heads: the same encoder, decoder and CTC, beam 10, every utterance searched for as many units as
speech has in its time (12 a second), so that both heads take the same number of steps; only the
output layer of the decoder differs. `peaked` weights are ten times the initial ones, which is about
what training makes of them.

WeNet: its searches written from their description (wenet_search.py) at equal weights, their encoder
ours with torch's own products. The weights are random but for two units: blank is best in 60 % of
the frames, and the end either never comes or comes at another time in each utterance (30 to 90
units). Both sides must find the same best hypotheses and scores. The floor beside a whole is its
arithmetic: the encoder alone, and the linear layers of the decoder alone for the rows that the
search needs.

Features are noise and made beforehand: no audio is read. A real-time factor (RTF) is seconds a
second of audio.

Example: python benchmarks/recognize.py --threads 2 --out benchmarks/notes/recognize_cpu
         python benchmarks/recognize.py --device cuda --parts languages --dtypes fp32 bf16    Table 6's rows
"""

import argparse
import json
from collections.abc import Sequence
from itertools import product
from statistics import median

import torch
import wenet_search
from paired import Facts, Side, alternate, body_of, make_parser, number, publish, ratios
from recognize_sides import (
    BEAM,
    CTC_WEIGHT,
    PEAKED,
    Speech,
    encoder_alone,
    make_model,
    ours,
    products_alone,
    read_speech,
    rows_of_steps,
    set_end,
    share_equal,
    speech,
    spread_ctc,
    wenets,
)
from training_sides import SPECIAL

from wenet_hs.decode.ctc_search import prefix_beam_search
from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.heads.kernels.search import topk_lowest_id_first
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.score.tables import markdown_table

HEADS = ("softmax", "hsoftmax")
LANGUAGES = {"tr": 3.66, "pl": 4.48, "ru": 5.16}
"""Mean seconds of a clip in Common Voice 11.0."""
TOKENS = (20, 40, 80)
UNITS_A_SECOND, FRAMES_A_SECOND = 12, 25
NUM_CHARACTERS = 40
VOCABULARIES = {"char 300": 300, "BPE 500": 500, "BPE 5,000": 5_000, "BPE 10,000": 10_000}
MODES = ("attention", "attention_rescoring")
PARTS = ("wenet", "languages", "lengths", "vocabularies")
ENDS = (30, 39, 47, 56, 64, 73, 81, 90)
"""Units after which the end of each utterance becomes likely."""
CASES = {
    "attention, to the limit": "attention",
    "attention, ends at different times": "attention",
    "ctc_prefix_beam_search": "ctc_prefix_beam_search",
    "attention_rescoring": "attention_rescoring",
}
NOT_PAIRED = (
    "WeNet itself, as measured once on two other cores (not paired, not this run; random weights): RTF 0.013 CTC "
    "greedy, 0.026 CTC prefix beam 10, 0.19 attention beam 10 to the limit, 0.03 attention rescoring. The paper's "
    "Table 6 (GPU; not paired): softmax 0.022, 0.023, 0.026 and H-Softmax 0.018, 0.018, 0.020 for tr, pl, ru."
)


def options_of(units_a_second: float | None = None) -> DecodeOptions:
    """Beam 10 by WeNet's rules; with `units_a_second` every hypothesis has exactly so many."""
    ratio = (
        {}
        if units_a_second is None
        else dict.fromkeys(("max_len_ratio", "min_len_ratio"), units_a_second / FRAMES_A_SECOND)
    )
    return DecodeOptions(beam_size=BEAM, ctc_weight=CTC_WEIGHT, **ratio)


def compare_heads(
    said: Speech,
    num_units: int,
    mode: str,
    args: argparse.Namespace,
    *,
    scale: float = PEAKED,
    dtype: str = "fp32",
) -> Facts:
    """RTF of both heads, and how many times faster the tree is."""
    build = {"scale": scale, "device": args.device, "quick": args.quick}
    models = {head: spread_ctc(make_model(num_units, head=head, **build), said) for head in HEADS}
    sides: dict[str, Side] = {
        head: ours(model, said, mode, options_of(UNITS_A_SECOND)) for head, model in models.items()
    }
    with torch.autocast(
        args.device, torch.bfloat16, enabled=dtype == "bf16"
    ):  # as `recognize --dtype`
        times = alternate(sides, args.rounds_of_heads, device=args.device)
    rtf = {head: median(times[head]) / said.seconds for head in HEADS}
    return {"mode": mode, "dtype": dtype, "rtf": rtf, "ratio": ratios(times, "softmax")["hsoftmax"]}


def by_language_and_length(args: argparse.Namespace) -> list[Facts]:
    """Table 6's rows: languages by the mean length of their clips, and sentences of one length."""
    num, sets = 2 if args.quick else 16, dict[str, list[float]]()
    if "languages" in args.parts:
        sets = {
            f"{lang}, {mean_s:g} s a clip": read_speech(mean_s, num)
            for lang, mean_s in LANGUAGES.items()
        }
    if "lengths" in args.parts:
        sets |= {
            f"{tokens} tokens a sentence": [tokens / UNITS_A_SECOND] * (num // 2)
            for tokens in TOKENS
        }
    records = []
    for name, seconds in sets.items():
        said = speech(seconds, args.device)
        for mode, dtype in product(MODES, args.dtypes):
            records.append(
                {"set": name, **compare_heads(said, NUM_CHARACTERS, mode, args, dtype=dtype)}
            )
            print(json.dumps(records[-1]), flush=True)
    return records


def by_vocabulary(args: argparse.Namespace) -> list[Facts]:
    """The same 8 × 5 s with more and more units, the number of steps held fixed."""
    said = speech([5.0] * (2 if args.quick else 8), args.device)
    records = []
    for name, num_units in VOCABULARIES.items():
        for label, scale in {"as initialised": 1.0, "peaked": PEAKED}.items():
            found = compare_heads(said, num_units, "attention", args, scale=scale)
            records.append({"vocabulary": name, "units": num_units, "weights": label, **found})
            print(json.dumps(records[-1]), flush=True)
    return records


def compare_wholes(name: str, model: AsrModel, said: Speech, args: argparse.Namespace) -> Facts:
    """Features → hypotheses on both sides, with the arithmetic below ours."""
    mode = CASES[name]
    own, theirs = ours(model, said, mode, options_of()), wenets(model, said, mode)
    found = own()
    same = share_equal(found, theirs())
    rows = rows_of_steps(model, own)
    sides: dict[str, Side] = {"wenet": theirs, "ours": own, "encoder": encoder_alone(model, said)}
    if rows:
        sides["products"] = products_alone(model, said, rows)
    times = alternate(sides, args.rounds, device=args.device)
    record: Facts = {
        "case": name,
        "rtf": {side: median(values) / said.seconds for side, values in times.items()},
        "ratio": ratios(times, "wenet")["ours"],
        "same_places": same,
        "units": [len(nbest[0].ids) for nbest in found],
        "rows": rows,
    }
    print(json.dumps(record), flush=True)
    return record


@torch.no_grad()
def compare_prefix_searches(model: AsrModel, said: Speech, args: argparse.Namespace) -> Facts:
    """From the log-probabilities of CTC to the hypotheses."""
    memory, lengths = model.encode(said.features, said.lengths)
    log_probs = model.ctc.log_probs(memory)

    def own() -> list[list[Hypothesis]]:
        best = topk_lowest_id_first(log_probs, BEAM)
        return prefix_beam_search(*best, lengths, blank=SPECIAL.blank, beam_size=BEAM)

    def theirs() -> list[list[Hypothesis]]:
        found = wenet_search.prefix_beam(log_probs, lengths, blank=SPECIAL.blank, beam_size=BEAM)
        return [[Hypothesis(ids, score) for ids, score in nbest] for nbest in found]

    same = share_equal(own(), theirs())
    times = alternate({"wenet": theirs, "ours": own}, args.rounds, device=args.device)
    rtf = {side: median(values) / said.seconds for side, values in times.items()}
    name = "ctc_prefix_beam_search, the search alone"
    return {"case": name, "rtf": rtf, "ratio": ratios(times, "wenet")["ours"], "same_places": same}


def against_wenet(args: argparse.Namespace) -> list[Facts]:
    """Each mode as a whole, and the prefix search alone; 8 × 5 s, V = 300."""
    said = speech([5.0] * (2 if args.quick else 8), args.device)
    build = {"device": args.device, "quick": args.quick}
    endless, ending = (
        set_end(spread_ctc(make_model(300, **build), said), said, ends)
        for ends in (None, ENDS[: len(said.lengths)])
    )
    records = [
        compare_wholes(name, endless if "limit" in name else ending, said, args) for name in CASES
    ]
    return [*records, compare_prefix_searches(ending, said, args)]


def table_of_heads(records: Sequence[Facts], names: Sequence[str]) -> str:
    """RTF of both heads, the columns `names` before them."""
    rows = []
    for record in records:
        rtf, ratio = record["rtf"], record["ratio"]
        rows.append(
            [
                *(str(record[name]) for name in names),
                *(f"{rtf[head]:.4f}" for head in HEADS),
                f"{ratio:.2f}×",
            ]
        )
    return markdown_table([*names, *(f"{head}, RTF" for head in HEADS), "tree faster by"], rows)


def table_of_wholes(records: Sequence[Facts]) -> str:
    """RTF of both sides and of the arithmetic."""
    rows = []
    for record in records:
        rtf, ratio, same = record["rtf"], record["ratio"], record["same_places"]
        cells = [
            f"{rtf[side]:.4f}" if side in rtf else "–"
            for side in ("wenet", "ours", "encoder", "products")
        ]
        floor = rtf.get("encoder", 0.0) + rtf.get("products", 0.0)
        over = f"{number(rtf['ours'] / floor)}×" if floor else "–"
        rows.append(
            [
                str(record["case"]),
                *cells[:2],
                f"{number(ratio)}×",
                *cells[2:],
                over,
                f"{100 * same:.0f} %",
            ]
        )
    header = [
        "mode",
        "WeNet's, RTF",
        "ours, RTF",
        "faster by",
        "encoder alone",
        "decoder's products",
        "ours / floor",
    ]
    return markdown_table([*header, "same places in the lists"], rows)


def main() -> None:
    """Measure and publish."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument(
        "--rounds_of_heads",
        type=int,
        default=5,
        help="timed rounds of each head (default: %(default)s)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small models and one round: whether it runs, no figures",
    )
    parser.add_argument(
        "--parts", choices=PARTS, nargs="+", default=PARTS, help="only these (default: all)"
    )
    parser.add_argument(
        "--dtypes",
        choices=("fp32", "bf16"),
        nargs="+",
        default=("fp32",),
        help="by language, length",
    )
    args = parser.parse_args()
    if args.quick:
        args.rounds = args.rounds_of_heads = 1
    torch.set_num_threads(args.threads)
    wholes = against_wenet(args) if "wenet" in args.parts else []
    sets = by_language_and_length(args)
    sizes = by_vocabulary(args) if "vocabularies" in args.parts else []
    size = (
        "tiny layers, no figures"
        if args.quick
        else "12 conformer blocks × 256 and 6 decoder blocks"
    )
    by_set = table_of_heads(sets, ("set", "mode", "dtype"))
    tables = {
        "Against WeNet's searches (8 × 5 s, V = 300)": f"{table_of_wholes(wholes)}\n\n{NOT_PAIRED}"
        if wholes
        else "",
        f"By language and length of sentence (V = {NUM_CHARACTERS})": by_set if sets else "",
        "By vocabulary (8 × 5 s, attention)": table_of_heads(sizes, ("vocabulary", "weights"))
        if sizes
        else "",
    }
    text = "\n\n".join(
        [
            f"{body_of(__doc__)}\n\nBeam {BEAM}, {size}; the sides in the same rounds, medians of {args.rounds}, of "
            f"heads {args.rounds_of_heads}. float32 where no dtype stands; bf16: encoder and decoder.",
            *(f"## {title}\n\n{table}" for title, table in tables.items() if table),
        ]
    )
    facts = {"wenet": wholes, "sets": sets, "vocabularies": sizes, "quick": args.quick}
    publish("Recognition", text, facts, device=args.device, out=args.out)


if __name__ == "__main__":
    main()
