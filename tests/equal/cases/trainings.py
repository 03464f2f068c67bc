# SPDX-License-Identifier: Apache-2.0
"""`train` and `average`: losses, gradient norms, checkpoints and weights of all kinds of models."""

import shutil

from case_recorder import CaseRecorder
from made_audio import RATE, write_noise
from tiny_experiment import make_experiment, training_line

TREE = "--tree tree.json"
CTC_TREE = "--ctc_head hsoftmax --ctc_tree tree-ctc.json"
NO_DECODER = ("decoder=none", "decoder_conf=null", "model_conf=null")
CAUSAL = ("encoder_conf.causal=true", "encoder_conf.use_dynamic_chunk=true")
LEFT_CHUNKS = "encoder_conf.use_dynamic_left_chunk=true"


def record_heads(case: CaseRecorder) -> None:
    """A training per head, with its settings, and CTC over a tree."""
    make_experiment(case)
    case.run("softmax", training_line("softmax"))
    case.run("hsoftmax", training_line("hsoftmax", flags=f"--head hsoftmax {TREE}"))
    bias = "head_conf.bias=true"
    case.run("hsoftmax-bias", training_line("bias", bias, flags=f"--head hsoftmax {TREE}"))
    sparse = ("head_conf.sparse_grad=true", "model_conf.lsm_kind=node")
    case.run("hsoftmax-sparse", training_line("sparse", *sparse, flags=f"--head hsoftmax {TREE}"))
    case.run("class", training_line("class", flags=f"--head class {TREE}"))
    classes = "head_conf.num_classes=2"
    case.run("class-2", training_line("class-2", classes, flags=f"--head class {TREE}"))
    case.run("adaptive", training_line("adaptive", flags=f"--head adaptive {TREE}"))
    cutoffs = "head_conf.cutoffs=[3,6]"
    case.run("adaptive-cutoffs", training_line("cutoffs", cutoffs, flags=f"--head adaptive {TREE}"))
    case.run("ctc-tree", training_line("ctc-tree", flags=CTC_TREE))


def record_models(case: CaseRecorder) -> None:
    """Decoders, encoders, loss weights, optimizers: what a config can change in the model."""
    make_experiment(case)
    case.run("ctc-only", training_line("ctc-only", *NO_DECODER))
    case.run("ctc-only-tree", training_line("ctc-only-tree", *NO_DECODER, flags=CTC_TREE))
    case.run("ctc-first", training_line("ctc-first", "model_conf.ctc_only_steps=5"))
    final = ("model_conf.ctc_weight_final=0.1", "model_conf.ctc_weight_steps=6")
    case.run("ctc-weight", training_line("ctc-weight", *final))
    both = ("decoder=bitransformer", "decoder_conf.r_num_blocks=1", "model_conf.reverse_weight=0.3")
    case.run("bitransformer", training_line("bitransformer", *both))
    guide = ("model_conf.attention_guide=2.0", "model_conf.attention_guide_steps=6")
    case.run("guide", training_line("guide", *guide))
    inter = (
        "encoder_conf.num_blocks=2",
        "model_conf.interctc_weight=0.3",
        "model_conf.interctc_layer=1",
    )
    case.run("interctc", training_line("interctc", *inter))
    case.run("causal", training_line("causal", *CAUSAL, LEFT_CHUNKS))
    case.run("layer-norm", training_line("layer-norm", "encoder_conf.cnn_module_norm=layer_norm"))
    size = "{output_size: 16, attention_heads: 2, linear_units: 24, num_blocks: 1}"
    transformer = ("encoder=transformer", f"'encoder_conf={size}'")
    case.run("transformer", training_line("transformer", *transformer))
    case.run("accumulated", training_line("accumulated", "accum_grad=2", "optim=adamw"))
    cosine = ("scheduler=warmup_cosine", "scheduler_conf.total_steps=7", "dtype=bf16")
    case.run("cosine-bf16", training_line("cosine", *cosine))
    case.run("unknown-setting", training_line("wrong", "num_block=3"), expected=2)


def record_data(case: CaseRecorder) -> None:
    """Batches, augmentation, caches, shards, several lists, and other units."""
    make_experiment(case)
    dynamic = (
        "dataset_conf.batch_conf.batch_type=dynamic",
        "dataset_conf.batch_conf.max_frames_in_batch=300",
    )
    case.run("dynamic-batches", training_line("dynamic", *dynamic))
    cached = ("dataset_conf.cache_features=true", "num_workers=1")
    case.run("cached", training_line("cached", *cached))
    on_device = ("dataset_conf.features_on=device", "dataset_conf.fbank_conf.dither=0.0")
    case.run("features-on-device", training_line("on-device", *on_device))
    write_noise(case.folder / "noise" / "wind.wav", 3.0, rate=RATE)
    write_noise(case.folder / "noise" / "a-room.wav", 0.1, rate=RATE)
    (case.folder / "noises.txt").write_text("noise/wind.wav\n", "utf-8")
    (case.folder / "rooms.txt").write_text("noise/a-room.wav\n", "utf-8")
    augmented = (
        "'dataset_conf.noise_conf={list: noises.txt, prob: 0.7}'",
        "'dataset_conf.reverb_conf={list: rooms.txt, prob: 0.7}'",
    )
    case.run("augmented", training_line("augmented", *augmented))
    sampling = "'dataset_conf.sampling={by: lang, temperature: 2, weights: [2, 1]}'"
    two_lists = training_line("sampling", sampling).replace("train.list", "train.list test.list")
    case.run("sampling", two_lists)
    shards = "--num_utts_per_shard 5 --num_workers 0 --out shards"
    case.run("shard-list", f"shards --data_list train.list {shards}")
    line = training_line("of-shards").replace("train.list", "shards/data.list")
    line = line.replace("dev.list", "shards/data.list")
    case.run("shards", f"{line} --data_type shard")
    units = "units --data_list train.list"
    case.make(f"{units} --kind bpe --vocab_size 14 --bpe_model bpe.model --out bpe.txt")
    case.run("bpe", training_line("bpe", flags="--bpe_model bpe.model --units bpe.txt"))
    case.make(f"{units} --kind phone --out phones.txt")
    case.run("phones", training_line("phones", flags="--tokenizer phone --units phones.txt"))


def record_continued(case: CaseRecorder) -> None:
    """A resumed training, averages, weights of another model, and frozen parts."""
    make_experiment(case)
    case.run("whole", training_line("whole", "save_interval=2"))
    _cut_back(case, "whole", "cut", last_step=4)
    case.run("resumed", training_line("cut", "save_interval=2"))
    case.run("longer", training_line("whole", "save_interval=2", "max_epoch=3"))
    case.run("changed", training_line("whole", "save_interval=2", "grad_clip=1"), expected=2)
    case.run("average", "average --model_dir whole --num 3 --by accuracy")
    case.run("average-last", "average --model_dir whole --num 2 --by last --dst_model last.pt")
    case.run("wenet-flags", "average --src_path whole --dst_model wenet.pt --num 2 --val_best")
    (case.folder / "words.txt").write_text("<blank> 0\n<unk> 1\n<sos/eos> 2\na 3\nb 4\nz 5\n▁ 6\n")
    other = training_line("fine-tuned", flags="--checkpoint whole")
    case.run("other-units", other.replace("--units units.txt", "--units words.txt"), expected=2)
    unknown = "dataset_conf.max_unknown_units=1.0"
    tuned = training_line("tuned", unknown, flags="--checkpoint whole")
    case.run("fine-tuned", tuned.replace("--units units.txt", "--units words.txt"))
    tree = training_line("tree", flags=f"--checkpoint whole --head hsoftmax {TREE}")
    case.run("fine-tuned-tree", tree)
    frozen = ("freeze=[encoder.embed]", "optim_conf.lr_of={decoder: 0.001}")
    case.run("frozen", training_line("frozen", *(f"'{setting}'" for setting in frozen)))
    stopping = ("max_epoch=6", "'early_stopping={metric: loss, patience: 1}'", "optim_conf.lr=0.5")
    case.run("early-stopping", training_line("stopping", *stopping))


def _cut_back(case: CaseRecorder, model_dir: str, copy: str, last_step: int) -> None:
    """Copy a finished folder in the state of a run that was killed after checkpoint `last_step`."""
    folder = case.folder / copy
    shutil.copytree(case.folder / model_dir, folder)
    for checkpoint in (folder / "checkpoints").glob("step-*"):
        if int(checkpoint.name.removeprefix("step-")) > last_step:
            shutil.rmtree(checkpoint)
    (folder / "checkpoints" / "finished.json").unlink()
    (folder / "final.pt").unlink()
