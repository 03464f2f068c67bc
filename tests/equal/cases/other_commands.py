# SPDX-License-Identifier: Apache-2.0
"""The help of every command, and models in Hugging Face's layout."""

import json

import torch
import wenet_program
import yaml
from case_recorder import CaseRecorder
from tiny_experiment import make_experiment, training_line

ACTIONS = {
    "prepare": ("commonvoice", "elan", "folder", "kaldi", "praat", "synthetic", "table", "ucla"),
    "tree": ("build", "show", "import", "export"),
    "lm": ("train", "score", "sample", "count", "ngram"),
}
LETTERS = ("[PAD]", "a", "b", "|", "c", "[UNK]", "d", "e")
TOKENIZER = {"pad_token": "[PAD]", "unk_token": "[UNK]", "word_delimiter_token": "|"}
LAYERS = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
WAVES = {
    "conv_dim": [8, 8, 8],
    "conv_kernel": [10, 8, 4],
    "conv_stride": [10, 8, 4],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}


def record_help(case: CaseRecorder) -> None:
    """`--help` of each command and action, and the lines for a wrong command."""
    case.run("wenet-hs", "--help")
    case.run("unknown", "no-command", expected=2)
    for command in wenet_program.internals().command_names():
        case.run(command, f"{command} --help")
        for action in ACTIONS.get(command, ()):
            case.run(f"{command}-{action}", f"{command} {action} --help")


def record_pretrained(case: CaseRecorder) -> None:
    """A wav2vec 2.0 of random weights: imported, and as the encoder of a training."""
    make_experiment(case)
    _write_wav2vec2(case)
    case.run("import", "import --hf hf --out imported")
    test = "--test_data test.list --device cpu --modes ctc_greedy_search ctc_prefix_beam_search"
    case.run("recognize", f"recognize --model_dir imported {test} --result_dir out/imported")
    _write_config(case)
    training = training_line("tuned").replace("tiny.yaml", "pretrained.yaml")
    training = training.replace("--cmvn global_cmvn", "")
    case.run("train", training)
    outputs = "'encoder_conf={path: hf, freeze: all, cache: outputs}'"
    cached = training.replace("--model_dir tuned", "--model_dir frozen")
    case.run("train-frozen", f"{cached} --override_config {outputs}")
    case.run("recognize-tuned", f"recognize --model_dir tuned {test} --result_dir out/tuned")


def _write_config(case: CaseRecorder) -> None:
    """pretrained.yaml: tiny.yaml with this encoder, which computes its own features."""
    config = yaml.safe_load((case.folder / "tiny.yaml").read_text("utf-8"))
    config["encoder"] = "pretrained"
    config["encoder_conf"] = {"path": "hf", "freeze": "feature_encoder"}
    for name in ("cmvn", "cmvn_conf"):
        del config[name]
    config["dataset_conf"] = {"spec_aug": False, "batch_conf": {"batch_size": 4}}
    (case.folder / "pretrained.yaml").write_text(yaml.safe_dump(config), "utf-8")


def _write_wav2vec2(case: CaseRecorder) -> None:
    """hf/: config, weights and letters, as transformers writes a fine-tuned model."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = Wav2Vec2Config(**LAYERS, **WAVES, vocab_size=len(LETTERS), pad_token_id=0)
    model = Wav2Vec2ForCTC(config)
    with torch.no_grad():
        for value in model.parameters():
            value += 0.1 * torch.randn(value.shape)
    folder = case.folder / "hf"
    model.save_pretrained(folder)
    numbers = {letter: number for number, letter in enumerate(LETTERS)}
    (folder / "vocab.json").write_text(json.dumps(numbers))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    (folder / "preprocessor_config.json").write_text(json.dumps({"do_normalize": True}))
