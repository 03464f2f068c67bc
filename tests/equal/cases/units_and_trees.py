# SPDX-License-Identifier: Apache-2.0
"""`units`, `tree` and `cmvn`: unit tables, inventories, trees of every kind, feature statistics."""

import json

from case_recorder import CaseRecorder
from tiny_experiment import LANGS, write_config, write_corpus

PHONE_WORDS = (
    *("a t͡ʃ i", "ʃʲ a kʰ", "ã d͡ʒ u", "kʷʼ ɜ a", "t a k", "d a ɡ", "i t u", "ʃ i m a"),
    *("m a n i", "n u ŋ a", "p a t i", "b i d a", "k u p a", "s a z i", "z u s a", "a a i u"),
)
BINARY_KINDS = ("huffman", "fano", "balanced", "alphabetical", "random", "permuted", "brown")


def record_units(case: CaseRecorder) -> None:
    """Unit tables of every kind, from data lists and text, and inventories per language."""
    write_corpus(case.folder)
    write_phones(case)
    units = "units --data_list train.list"
    case.run("char", f"{units} --kind char --out char.txt")
    case.run("word", f"{units} --kind word --min_count 2 --out word.txt")
    case.run("phone", "units --data_list phones.list --kind phone --out phone.txt")
    case.run("bpe", f"{units} --kind bpe --vocab_size 14 --bpe_model bpe.model --out bpe.txt")
    case.run("inventory", "units --data_list phones.list --kind phone --inventory inventory.tsv")
    case.run("replaced", f"{units} --kind char --min_count 9 --out char.txt --inventory chars.tsv")
    (case.folder / "a.txt").write_text("The cat\n\nthe <unk> dog\n", "utf-8")
    case.run("text", "units --text a.txt --kind word --keep_empty_lines --out text.txt")
    case.run("no-model", f"{units} --kind bpe --vocab_size 14 --out bpe.txt", expected=2)


def record_trees(case: CaseRecorder) -> None:
    """Trees of every kind, their options, and their other forms."""
    write_corpus(case.folder)
    write_phones(case)
    case.make("units --data_list train.list --kind char --out char.txt")
    case.make("units --data_list phones.list --kind phone --out phone.txt")
    chars = "--units char.txt --data_list train.list"
    phones = "--units phone.txt --data_list phones.list --tokenizer phone"
    for kind in BINARY_KINDS:
        case.run(kind, f"tree build --kind {kind} {phones} --out {kind}.json")
        weighted = f"{phones} --weighting per_language --blank_share 0.4"
        case.run(f"{kind}-ctc", f"tree build --kind {kind} {weighted} --out {kind}-ctc.json")
    case.run("chars", f"tree build --kind huffman {chars} --out chars.json")
    case.run("depth", f"tree build --kind huffman {phones} --max_depth 5 --out depth.json")
    case.run("seed", f"tree build --kind random {phones} --seed 5 --out seed.json")
    case.run("articulatory", f"tree build --kind articulatory {phones} --out articulatory.json")
    embedding = f"tree build --kind embedding {phones}"
    case.run("embedding", f"{embedding} --save_embeddings vectors.txt --out embedding.json")
    case.run("vectors", f"{embedding} --embeddings vectors.txt --out vectors.json")
    case.run("classes", f"tree build --kind classes {phones} --num_classes 4 --out classes.json")
    by_brown = f"tree build --kind classes {phones} --by top-of brown --out classes-brown.json"
    case.run("classes-brown", by_brown)
    wrong = f"tree build --kind fano {phones} --max_depth 4 --out x.json"
    case.run("wrong-flag", wrong, expected=2)
    pictures = "--svg a.svg --png a.png --html a.html --max_leaves 12"
    case.run("show", f"tree show huffman.json {pictures} --data_list phones.list --units phone.txt")
    case.run("show-classes", "tree show classes.json --svg b.svg")
    case.run("export", "tree export huffman.json --original original")
    case.run("import", "tree import --original original --units phone.txt --out imported.json")
    nested = [["<blank>", "<unk>"], ["<sos/eos>", "a", ["b", "c"]], ["d", "e", "▁"]]
    (case.folder / "nested.txt").write_text(json.dumps(nested, ensure_ascii=False), "utf-8")
    case.run("nested", "tree import --nested nested.txt --units char.txt --out nested.json")


def record_cmvn(case: CaseRecorder) -> None:
    """Feature statistics: one process and several, a missing clip, a list of shards."""
    write_corpus(case.folder)
    write_config(case.folder)
    cmvn = "cmvn --config tiny.yaml --data_list train.list"
    case.run("one-process", f"{cmvn} --num_workers 1 --out one")
    case.run("two-processes", f"{cmvn} --num_workers 2 --out two")
    bins = "dataset_conf.fbank_conf.num_mel_bins=12"
    case.run("override", f"{cmvn} --num_workers 1 --override_config {bins} --out bins")
    (case.folder / "clips" / "train03.wav").unlink()
    case.run("missing-clip", f"{cmvn} --num_workers 1 --out missing", expected=2)
    flags = "--num_utts_per_shard 2 --num_workers 0 --out shards"
    case.run("shards", f"shards --data_list dev.list {flags}")
    shards = "cmvn --config tiny.yaml --data_list shards/data.list --data_type shard"
    case.run("shard-list", f"{shards} --num_workers 1 --out of-shards")


def write_phones(case: CaseRecorder) -> None:
    """phones.list: words in IPA of two languages. No command of these cases reads the audio."""
    lines = []
    for number, text in enumerate(PHONE_WORDS):
        line = {"key": f"p{number}", "wav": "x.wav", "txt": text, "lang": LANGS[number % 2]}
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    (case.folder / "phones.list").write_text("".join(lines), "utf-8")
