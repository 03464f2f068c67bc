# SPDX-License-Identifier: Apache-2.0
"""`export`: the ONNX files of each runtime, with weights, metadata, READMEs and printed lines."""

from case_recorder import CaseRecorder
from tiny_experiment import make_experiment, make_recogniser

BINS = "dataset_conf.fbank_conf.num_mel_bins=80"
CAUSAL = (
    "encoder_conf.causal=true",
    "encoder_conf.use_dynamic_chunk=true",
    "encoder_conf.use_dynamic_left_chunk=true",
)


def record_exports(case: CaseRecorder) -> None:
    """Whole utterances and streams, CTC over a softmax and over a tree, 8-bit weights."""
    make_experiment(case)
    cmvn = "cmvn --data_list train.list --config tiny.yaml --num_workers 1 --out global_cmvn"
    case.make(f"{cmvn} --override_config {BINS}")
    make_recogniser(case, "whole", BINS)
    ctc_tree = "--ctc_head hsoftmax --ctc_tree tree-ctc.json"
    make_recogniser(case, "causal", BINS, "max_epoch=2", *CAUSAL, flags=ctc_tree)
    for runtime in ("onnxruntime", "sherpa", "wenet"):
        case.run(runtime, f"export --model_dir whole --for {runtime} --out whole-{runtime}")
        streaming = "--streaming --chunk 4 --left 2"
        line = f"export --model_dir causal --for {runtime} {streaming} --out causal-{runtime}"
        case.run(f"{runtime}-streaming", line)
    int8 = "--test_data train.list --quantize int8 --max_int8_loss 1"
    case.run("int8", f"export --model_dir whole {int8} --out int8")
    case.run("not-causal", "export --model_dir whole --streaming --out no", expected=2)
