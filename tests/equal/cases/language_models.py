# SPDX-License-Identifier: Apache-2.0
"""`lm` and `embed`: n-gram and recurrent language models, word vectors."""

import lzma

import yaml
from case_recorder import CaseRecorder

WORDS = ("the", "cat", "dog", "sees", "a", "red", "house", "and", "runs", "home")
NUM_SENTENCES = 60


def record_language_models(case: CaseRecorder) -> None:
    """Estimate, train, score, sample and count; word vectors and a tree from them."""
    write_texts(case)
    case.run("words", "units --text train.txt --kind word --out words.txt")
    text = "lm ngram --text train.txt --discount_fallback"
    case.run("ngram", f"{text} --order 3 --out words.arpa")
    case.run("ngram-units", f"{text} --tokenizer char --order 4 --out chars.arpa")
    content = (case.folder / "train.txt").read_bytes()
    (case.folder / "train.txt.xz").write_bytes(lzma.compress(content))
    compressed = "lm ngram --text train.txt.xz --keep_empty_lines --order 2"
    case.run("ngram-no-fallback", f"{compressed} --out short.arpa", expected=2)
    words = "--tokenizer word --units words.txt --text train.txt"
    case.run("tree", f"tree build --kind huffman {words} --out tree.json")
    write_lm_config(case, "word", "words.txt")
    lm = "lm train --config lm.yaml --train_text train.txt --valid_text valid.txt --device cpu"
    case.run("softmax", f"{lm} --model_dir softmax")
    lstm = "--override_config rnn=lstm rnn_conf.num_layers=2"
    case.run("hsoftmax-lstm", f"{lm} --model_dir hsoftmax --head hsoftmax --tree tree.json {lstm}")
    case.run("class", f"{lm} --model_dir class --head class --tree tree.json")
    case.run("adaptive", f"{lm} --model_dir adaptive --head adaptive --tree tree.json")
    sampled = "--override_config text_conf.reset_at_sentences=true scheduler=warmup_cosine"
    case.run("reset", f"{lm} --model_dir reset {sampled}")
    case.run("longer", f"{lm} --model_dir softmax --override_config max_epoch=3")
    score = "lm score --text valid.txt --device cpu"
    case.run("score", f"{score} --model_dir softmax --json score.json")
    case.run("score-tree", f"{score} --model_dir hsoftmax")
    case.run("sample", "lm sample --model_dir softmax --count 4 --temperature 0.8 --max_units 12")
    case.run("count", "lm count --text train.txt valid.txt --units words.txt --out texts.json")
    embed = "embed --text train.txt --min_count 1 --dim 8 --epochs 2"
    case.run("skipgram", f"{embed} --out skipgram.txt")
    cbow = "--arch cbow --window 3 --no_shrink_windows --sample 1e-2"
    case.run("cbow", f"{embed} {cbow} --out cbow.txt")
    case.run("embed-softmax", f"{embed} --head softmax --seed 3 --out embed-softmax.txt")
    vectors = "--embeddings skipgram.txt"
    case.run("embedding-tree", f"tree build --kind embedding {words} {vectors} --out vectors.json")


def write_texts(case: CaseRecorder) -> None:
    """train.txt and valid.txt: sentences of three to six words, and an empty line."""
    lines = []
    for number in range(NUM_SENTENCES):
        length = 3 + number % 4
        words = [WORDS[(number * step + step * step) % len(WORDS)] for step in range(length)]
        lines.append(" ".join(words))
    lines[7] = ""
    (case.folder / "train.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (case.folder / "valid.txt").write_text("\n".join(lines[::6]) + "\nthe blue cat\n", "utf-8")


def write_lm_config(case: CaseRecorder, tokenizer: str, units: str) -> None:
    """lm.yaml: a GRU of width 12."""
    config = {
        "rnn": "gru",
        "rnn_conf": {"embedding_size": 8, "hidden_size": 12, "num_layers": 1, "dropout_rate": 0.2},
        "tokenizer": tokenizer,
        "tokenizer_conf": {"symbol_table_path": units},
        "text_conf": {"batch_size": 4, "num_steps": 10},
        "grad_clip": 1.0,
        "max_epoch": 2,
        "optim_conf": {"lr": 0.01},
        "scheduler_conf": {"warmup_steps": 3},
        "log_interval": 1,
        "keep_checkpoints": 2,
        "seed": 1,
    }
    (case.folder / "lm.yaml").write_text(yaml.safe_dump(config), "utf-8")
