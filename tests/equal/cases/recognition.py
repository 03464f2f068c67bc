# SPDX-License-Identifier: Apache-2.0
"""`recognize`, `align`, `transcribe` and `combine`: texts, n-best lists, times, other files."""

import json

from case_recorder import CaseRecorder
from cases.language_models import write_lm_config
from made_audio import read_raw_samples, write_recording
from tiny_experiment import make_experiment, make_recogniser

TREE = "--tree tree.json"
CTC_TREE = "--ctc_head hsoftmax --ctc_tree tree-ctc.json"
NO_DECODER = ("decoder=none", "decoder_conf=null", "model_conf=null")
BOTH = ("decoder=bitransformer", "decoder_conf.r_num_blocks=1", "model_conf.reverse_weight=0.3")
STREAMING = ("encoder_conf.causal=true", "encoder_conf.use_dynamic_chunk=true")
CUT_AT = 52_345
"""Samples of a recording that ends inside of a text and of a millisecond."""
TALK = ("abc de", "aab cd", "ebb ca", "dab", "ca ba", "bcd aa")


def recognize_line(model_dir: str, result_dir: str, flags: str = "") -> str:
    """The command line that decodes the test list."""
    line = f"recognize --model_dir {model_dir} --test_data test.list --result_dir {result_dir}"
    return f"{line} --device cpu --beam_size 5 {flags}"


def record_modes(case: CaseRecorder) -> None:
    """All modes with every head, and each flag of the searches."""
    make_experiment(case)
    make_recogniser(case, "softmax")
    make_recogniser(case, "both", *BOTH)
    make_recogniser(case, "ctc", *NO_DECODER)
    for head in ("hsoftmax", "class", "adaptive"):
        ctc = CTC_TREE if head == "hsoftmax" else ""
        make_recogniser(case, head, flags=f"--head {head} {TREE} {ctc}")
    for model in ("softmax", "hsoftmax", "class", "adaptive", "both", "ctc"):
        case.run(model, recognize_line(model, f"out/{model}"))
    reverse = "--modes attention_rescoring --reverse_weight 0.4"
    case.run("reverse-weight", recognize_line("both", "out/reverse", reverse))
    flags = {
        "one-best": "--nbest 1",
        "one-clip": "--batch_size 1",
        "large-beam": "--beam_size 12",
        "ctc-weight": "--modes attention_rescoring joint --ctc_weight 0.2",
        "length-penalty": "--modes attention joint --length_penalty 1.0 --finished_list",
        "length-ratios": "--modes attention joint --max_len_ratio 0.3 --min_len_ratio 0.1",
        "length-bonus": "--modes joint ctc_prefix_beam_search --length_bonus 0.7",
        "bf16": "--dtype bf16",
    }
    for step, flag in flags.items():
        case.run(step, recognize_line("softmax", f"out/{step}", flag))
    write_recording(case.folder / "talk.wav", TALK)
    talk = {"key": "talk", "wav": "talk.wav", "txt": " ".join(TALK), "lang": "aaa"}
    (case.folder / "talks.list").write_text(json.dumps(talk) + "\n", "utf-8")
    segments = "--max_segment_s 4 --modes ctc_prefix_beam_search attention_rescoring"
    talks = recognize_line("softmax", "out/segments", segments)
    case.run("segments", talks.replace("test.list", "talks.list"))
    (case.folder / "clips" / "test01.wav").unlink()
    case.run("missing-clip", recognize_line("softmax", "out/missing"), expected=2)
    combined = "combine --nbest out/softmax/joint out/hsoftmax/joint --out out/combined"
    case.run("combined", combined)
    case.run("combined-weights", f"{combined}-weights --weights 1 3 --scale 0.5")
    case.run("combined-errors", f"{combined}-errors --by expected_errors")


def record_fusion(case: CaseRecorder) -> None:
    """Language models of units and words, n-gram and recurrent; inventories of known units."""
    make_experiment(case)
    make_recogniser(case, "softmax")
    make_recogniser(case, "tree", flags=f"--head hsoftmax {TREE}")
    ngram = "lm ngram --data_list train.list --discount_fallback"
    case.make(f"{ngram} --units units.txt --order 3 --out units.arpa")
    case.make(f"{ngram} --tokenizer word --order 2 --out words.arpa")
    transcripts = (case.folder / "train.txt").read_text("utf-8").splitlines()
    texts = [line.partition(" ")[2] for line in transcripts]
    (case.folder / "text.txt").write_text("\n".join(texts) + "\n", "utf-8")
    write_lm_config(case, "char", "units.txt")
    lm = "lm train --config lm.yaml --train_text text.txt --valid_text text.txt --device cpu"
    case.make(f"{lm} --model_dir lm")
    for model in ("softmax", "tree"):
        for name in ("units.arpa", "words.arpa", "lm"):
            flags = f"--lm {name} --lm_weight 0.4 --length_bonus 0.2"
            step = f"{model}-{name}"
            case.run(step, recognize_line(model, f"out/{step}", flags))
    case.run("no-weight", recognize_line("softmax", "out/none", "--lm units.arpa"), expected=2)
    (case.folder / "known.tsv").write_text("aaa\ta b c ▁\nbbb\tc d e ▁ ẽ\n", "utf-8")
    known = "--inventory known.tsv"
    case.run("inventory", recognize_line("softmax", "out/inventory", known))
    placed = f"{known} --place_unseen articulatory --lm units.arpa --lm_weight 0.2"
    case.run("inventory-tree", recognize_line("tree", "out/inventory-tree", placed))


def record_streams(case: CaseRecorder) -> None:
    """A causal model: chunks, simulated streams, and `transcribe --stream` of files and pipes."""
    make_experiment(case)
    make_recogniser(case, "causal", *STREAMING)
    make_recogniser(case, "ctc-tree", *STREAMING, flags=CTC_TREE)
    write_recording(case.folder / "talk.wav", TALK)
    for model in ("causal", "ctc-tree"):
        case.run(f"{model}-whole", recognize_line(model, f"out/{model}-whole"))
        for chunk, left in ((4, -1), (4, 2), (1, 0)):
            chunks = f"--decoding_chunk_size {chunk} --num_decoding_left_chunks {left}"
            step = f"{model}-{chunk}-{left}"
            case.run(step, recognize_line(model, f"out/{step}", chunks))
            simulated = f"{chunks} --simulate_streaming"
            case.run(f"{step}-simulated", recognize_line(model, f"out/{step}-s", simulated))
        stream = f"transcribe --stream --model_dir {model} --device cpu"
        case.run(f"{model}-file", f"{stream} talk.wav")
        case.run(f"{model}-json", f"{stream} --json talk.wav")
        small = "--decoding_chunk_size 3 --silence_s 0.4"
        case.run(f"{model}-small-chunks", f"{stream} {small} talk.wav")
        short = "--max_segment_s 5 --mode attention_rescoring --num_decoding_left_chunks 1"
        case.run(f"{model}-short-segments", f"{stream} {short} talk.wav")
    samples = read_raw_samples(case.folder / "talk.wav")
    stream = "transcribe --stream --model_dir causal --device cpu"
    case.run("pipe", f"{stream} -", stdin=samples)
    case.run("pipe-8-khz", f"{stream} --rate 8000 -", stdin=samples[: len(samples) // 2])
    case.run("pipe-wav", f"{stream} -", stdin=(case.folder / "talk.wav").read_bytes())
    subtitles = b"WEBVTT\n\n00:00.250 --> 00:03.500\nmo\n"
    case.run("pipe-text", f"{stream} -", stdin=subtitles, expected=2)


def record_alignments(case: CaseRecorder) -> None:
    """`align` in every form that it writes, with CTC over a softmax and over a tree."""
    make_experiment(case)
    make_recogniser(case, "softmax")
    make_recogniser(case, "ctc-tree", flags=CTC_TREE)
    for model in ("softmax", "ctc-tree"):
        forms = f"--ctm {model}.ctm --textgrid {model}-grids --elan {model}-elan"
        align = f"align --model_dir {model} --data_list test.list --device cpu"
        case.run(model, f"{align} --out {model}.jsonl {forms}")
    write_recording(case.folder / "talk.wav", TALK)
    utterances = (
        {"key": "talk", "wav": "talk.wav", "txt": " ".join(TALK)},
        {"key": "other-units", "wav": "talk.wav", "txt": "xyz"},
        {"key": "missing", "wav": "no.wav", "txt": "a"},
    )
    lines = [json.dumps(utterance) + "\n" for utterance in utterances]
    (case.folder / "talks.list").write_text("".join(lines), "utf-8")
    align = "align --model_dir softmax --data_list talks.list --device cpu"
    case.run("recording", f"{align} --out talks.jsonl --elan talks", expected=2)


def record_transcriptions(case: CaseRecorder) -> None:
    """`transcribe`: lines, JSON, files for ELAN and Praat, subtitles, tables, existing segments."""
    make_experiment(case)
    make_recogniser(case, "softmax")
    write_recording(case.folder / "talk.wav", TALK)
    write_recording(case.folder / "more" / "talk2.wav", TALK[::-1])
    transcribe = "transcribe --model_dir softmax --device cpu"
    case.run("lines", f"{transcribe} talk.wav more/talk2.wav clips/test00.wav")
    case.run("json", f"{transcribe} --json --nbest 3 talk.wav")
    case.run("joint", f"{transcribe} --mode joint --beam_size 4 talk.wav")
    case.run("missing", f"{transcribe} no.wav talk.wav", expected=2)
    forms = "--elan out --textgrid out --srt out --record out --ctm all.ctm --tsv all.tsv"
    case.run("all-forms", f"{transcribe} {forms} --low_confidence 0.9 talk.wav more/talk2.wav")
    write_recording(case.folder / "cut.wav", TALK, num_samples=CUT_AT)
    forms = "--elan cut --textgrid cut --srt cut --record cut --ctm cut.ctm --tsv cut.tsv"
    case.run("cut-recording", f"{transcribe} {forms} cut.wav")
    case.run("exists", f"{transcribe} --elan out talk.wav", expected=2)
    skipped = f"{transcribe} --elan out --srt out2 --skip_existing talk.wav"
    case.run("skip-existing", skipped)
    case.run("silero", f"{transcribe} --vad silero --srt silero talk.wav")
    (case.folder / "again").mkdir()
    eaf = (case.folder / "out" / "talk.eaf").read_text("utf-8")
    (case.folder / "talk.eaf").write_text(eaf, "utf-8")
    case.run("of-eaf", f"{transcribe} --elan again --tier second talk.eaf")
    into = f"{transcribe} --elan into --into_tier wenet_hs --tier third talk.eaf"
    case.run("into-tier", into)
    grid = (case.folder / "out" / "talk.TextGrid").read_text("utf-8")
    (case.folder / "talk.TextGrid").write_text(grid, "utf-8")
    case.run("of-textgrid", f"{transcribe} --textgrid again --tier second talk.TextGrid")
