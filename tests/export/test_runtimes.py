# SPDX-License-Identifier: Apache-2.0
"""Exported models in the real runtimes: sherpa-onnx and onnxruntime find what PyTorch finds.

WeNet's own runtime is not run: its order of calls is, in onnxruntime.

Dimension key: N samples or hypotheses, T frames, F features, D width, V units, L labels.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from shared_exports import Shared, shared_folder
from tone_models import RATE, random_text, tones
from torch import Tensor
from wenet_runtime import WenetRuntime

import wenet_hs
from wenet_hs.decode.ctc_search import greedy_search, prefix_beam_search
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.modes import decode
from wenet_hs.export.onnx_files import OnnxFile, run_chunks
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.model.encoders.stream import encode_streamed
from wenet_hs.model.experiment import Experiment, load_experiment
from wenet_hs.nn.layers import Chunk

onnxruntime = pytest.importorskip("onnxruntime")
sherpa_onnx = pytest.importorskip("sherpa_onnx")
pytestmark = pytest.mark.slow

CHUNK = Chunk(16, 4)
ROOT = Path(__file__).parents[2]
SILENCE = np.zeros(round(0.66 * RATE), np.float32)
"""sherpa-onnx computes a chunk only when more features than it needs are ready."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return shared_folder(tmp_path_factory)


def samples(clip: Utterance) -> np.ndarray:
    wave_N, rate = soundfile.read(clip.wav, dtype="float32")
    assert rate == RATE
    return wave_N


def offline_texts(
    export: Path, slot: str, clips: list[Utterance], name: str = "model.onnx"
) -> list[str]:
    """What sherpa-onnx recognises in whole clips."""
    make = getattr(sherpa_onnx.OfflineRecognizer, f"from_{slot}")
    recognizer = make(model=str(export / name), tokens=str(export / "tokens.txt"))
    texts = []
    for clip in clips:
        stream = recognizer.create_stream()
        stream.accept_waveform(RATE, samples(clip))
        recognizer.decode_stream(stream)
        texts.append(stream.result.text)
    return texts


def our_texts(model: Path, clips: list[Utterance]) -> list[str]:
    recognizer = wenet_hs.load_model(model)
    return [recognizer.transcribe(clip.wav, mode="ctc_greedy_search").text for clip in clips]


# ---- sherpa-onnx, whole utterances


@pytest.mark.parametrize("runtime", ["sherpa", "onnxruntime"])
def test_fire_red_slot_finds_exactly_our_texts(shared: Shared, runtime: str) -> None:
    clips = read_data_list(shared.clips)
    expected = our_texts(shared.model("whole"), clips)
    assert offline_texts(shared.export("whole", runtime), "fire_red_asr_ctc", clips) == expected
    assert expected == [clip.txt for clip in clips]  # not empty, and not all the same


def test_wenet_slot_with_its_dither_finds_nearly_our_texts(shared: Shared) -> None:
    clips = read_data_list(shared.clips)
    expected = our_texts(shared.model("stream"), clips)
    found = offline_texts(shared.export("stream", "sherpa"), "wenet_ctc", clips)
    assert sum(one == other for one, other in zip(found, expected, strict=True)) >= 0.98 * len(
        clips
    )
    assert len(set(expected)) > 30


def test_8_bit_weights_in_sherpa(shared: Shared) -> None:
    export, clips = shared.export("whole", "sherpa"), read_data_list(shared.clips)
    assert offline_texts(export, "fire_red_asr_ctc", clips, "model.int8.onnx") == [
        clip.txt for clip in clips
    ]
    files = [OnnxFile(export / name) for name in ("model.onnx", "model.int8.onnx")]
    features = torch.randn(1, 300, 80, generator=torch.Generator().manual_seed(0))
    one, other = (file.run(features, torch.tensor([300]))[0] for file in files)
    assert not torch.equal(one, other)
    assert (export / "model.int8.onnx").stat().st_size < (export / "model.onnx").stat().st_size
    metadata = [file.session.get_modelmeta().custom_metadata_map for file in files]
    assert (
        metadata[0].items() <= metadata[1].items()
        and metadata[0]["model_type"] == "fire-red-asr-2-ctc"
    )


# ---- sherpa-onnx, streams


def stream_memory(experiment: Experiment, features_TF: Tensor) -> Tensor:
    """The output (1, T', D) of our encoder for the whole chunks of a stream."""
    lengths = torch.tensor([len(features_TF)])
    memory_1TD, _ = encode_streamed(experiment.model.encoder, features_TF[None], lengths, CHUNK)
    return memory_1TD[:, : (1 + (len(features_TF) - 67) // 64) * CHUNK.size]


def online_text(export: Path, wave_N: np.ndarray, part_s: float, name: str = "model.onnx") -> str:
    """What sherpa-onnx recognises in a stream that arrives in parts."""
    recognizer = sherpa_onnx.OnlineRecognizer.from_wenet_ctc(
        model=str(export / name),
        tokens=str(export / "tokens.txt"),
        chunk_size=16,
        num_left_chunks=4,
        num_threads=1,
    )
    stream, size = recognizer.create_stream(), round(part_s * RATE)
    for begin in range(0, len(wave_N), size):
        stream.accept_waveform(RATE, wave_N[begin : begin + size])
        while recognizer.is_ready(stream):
            recognizer.decode_stream(stream)
    stream.input_finished()
    while recognizer.is_ready(stream):
        recognizer.decode_stream(stream)
    return str(recognizer.get_result(stream))


def our_stream_text(experiment: Experiment, wave_N: np.ndarray) -> str:
    """Greedy over the whole chunks of our stream, without endpoints."""
    features_TF = experiment.frontend.compute(torch.from_numpy(wave_N))
    memory_1TD = stream_memory(experiment, features_TF)
    best = experiment.model.ctc.head.topk(memory_1TD, 1)
    ((hypothesis,),) = greedy_search(*best, torch.tensor([memory_1TD.size(1)]), blank=0)
    return experiment.tokenizer.decode(hypothesis.ids)


def test_online_recognizer_finds_the_texts_of_our_stream(shared: Shared) -> None:
    export, experiment = (
        shared.export("stream", "sherpa", streaming=True),
        load_experiment(shared.model("stream")),
    )
    right = 0
    for clip in read_data_list(shared.clips)[:20]:
        wave_N = np.concatenate([samples(clip), SILENCE])
        expected = our_stream_text(experiment, wave_N)
        assert online_text(export, wave_N, 0.37) == expected
        right += expected == clip.txt
    assert right >= 18


def test_online_recognizer_over_five_minutes(shared: Shared) -> None:
    export, experiment = (
        shared.export("stream", "sherpa", streaming=True),
        load_experiment(shared.model("stream")),
    )
    generator = np.random.default_rng(9)
    wave_N = np.concatenate(
        [*(tones(random_text(12, generator), generator) for _ in range(92)), SILENCE]
    )
    assert len(wave_N) > 300 * RATE
    expected = our_stream_text(experiment, wave_N)
    assert len(expected) > 800 and online_text(export, wave_N, 0.5) == expected


def test_positions_do_not_run_out_and_begin_at_0(shared: Shared) -> None:
    """A table of positions would end, and an offset as the runtime counts it would begin at 64."""
    export, experiment = (
        shared.export("stream", "sherpa", streaming=True),
        load_experiment(shared.model("stream")),
    )
    wave_N = tones(random_text(500, generator := np.random.default_rng(3)), generator)
    features_TF = experiment.frontend.compute(torch.from_numpy(wave_N))
    assert len(features_TF) > 12000
    found_TV = run_chunks(OnnxFile(export / "model.onnx"), features_TF, 67, 64)
    with torch.no_grad():
        expected_TV = experiment.model.ctc.log_probs(stream_memory(experiment, features_TF))[0]
        shifted_1TD = experiment.model.encoder.forward_chunk(  # type: ignore[operator]
            features_TF[None, :67],
            experiment.model.encoder.new_caches(),
            64,
            torch.ones(1, 1, 16, dtype=torch.bool),
        )
        shifted_TV = experiment.model.ctc.log_probs(shifted_1TD)[0]
    torch.testing.assert_close(found_TV, expected_TV, atol=1e-4, rtol=1e-5)
    assert (
        float((shifted_TV - found_TV[:16]).abs().max()) > 1e-3
    )  # so the tolerance sees a wrong position


# ---- onnxruntime: rescoring


def rescore(
    file: OnnxFile, memory_1TD: Tensor, nbest: list[tuple[int, ...]], reverse_weight: float
) -> list[float]:
    """Scores of hypotheses by `decoder.onnx`, as docs/export.md describes."""
    lengths_N = torch.tensor([len(ids) + 1 for ids in nbest])
    hyps_NL = torch.zeros(len(nbest), int(lengths_N.max()), dtype=torch.int64)
    for row, ids in enumerate(nbest):
        hyps_NL[row, : len(ids) + 1] = torch.tensor([2, *ids])
    outputs, scores = file.run(hyps_NL, lengths_N, memory_1TD), []
    for row, ids in enumerate(nbest):
        left, *right = (
            sum(float(log_probs[row, place, unit]) for place, unit in enumerate([*order, 2]))
            for order, log_probs in zip((ids, ids[::-1]), outputs, strict=True)
            if log_probs.dim() == 3
        )
        scores.append((1 - reverse_weight) * left + reverse_weight * sum(right))
    return scores


@pytest.mark.parametrize("name", ["whole", "stream"])
def test_rescoring_equals_ours(shared: Shared, name: str) -> None:
    export, experiment = shared.export(name, "onnxruntime"), load_experiment(shared.model(name))
    whole, decoder = OnnxFile(export / "model.onnx"), OnnxFile(export / "decoder.onnx")
    options = DecodeOptions(
        beam_size=6, ctc_weight=0.1, reverse_weight=0.3 if name == "whole" else 0.0
    )
    changed = 0
    for clip in read_data_list(shared.clips)[:12]:
        # Noise makes the search uncertain, so that rescoring has something to change.
        noise_N = 0.3 * np.random.default_rng(len(clip.txt)).standard_normal(
            len(samples(clip))
        ).astype(np.float32)
        features_1TF = experiment.frontend.compute(torch.from_numpy(samples(clip) + noise_N))[None]
        lengths = torch.tensor([features_1TF.size(1)])
        log_probs_1TV, frames, memory_1TD = whole.run(features_1TF, lengths)
        (candidates,) = prefix_beam_search(*log_probs_1TV.topk(6), frames, blank=0, beam_size=6)
        scores = rescore(
            decoder, memory_1TD, [one.ids for one in candidates], options.reverse_weight
        )
        totals = [
            score + options.ctc_weight * one.score
            for score, one in zip(scores, candidates, strict=True)
        ]
        best = int(np.argmax(totals))
        found = decode(experiment.model, features_1TF, lengths, ["attention_rescoring"], options)
        expected = found["attention_rescoring"][0][0]
        assert candidates[best].ids == expected.ids
        assert totals[best] == pytest.approx(expected.score, abs=1e-4 * max(1, abs(expected.score)))
        changed += best > 0
    assert changed > 0


def test_streaming_file_of_onnxruntime_has_the_memory_for_rescoring(shared: Shared) -> None:
    export, experiment = (
        shared.export("stream", "onnxruntime", streaming=True),
        load_experiment(shared.model("stream")),
    )
    assert (export / "decoder.onnx").exists()
    session = onnxruntime.InferenceSession(str(export / "model.onnx"))
    given = {one.name: one for one in session.get_inputs()}
    inputs = {
        name: np.zeros(one.shape, np.int64 if "int" in one.type else np.float32)
        for name, one in given.items()
    }
    inputs["x"][:] = np.random.default_rng(0).standard_normal(inputs["x"].shape)
    inputs |= {"offset": np.array([64]), "required_cache_size": np.array([64])}
    inputs["attn_mask"] = np.arange(80)[None, None] >= 64
    (memory_1TD,) = session.run(["encoder_out"], inputs)
    expected_1TD = stream_memory(experiment, torch.from_numpy(inputs["x"][0]))
    torch.testing.assert_close(torch.from_numpy(memory_1TD), expected_1TD, atol=1e-5, rtol=0)


# ---- WeNet's runtime, in its order of calls


@pytest.mark.parametrize("name", ["whole", "stream"])
def test_wenets_order_of_calls(shared: Shared, name: str) -> None:
    streaming = name == "stream"
    export, experiment = (
        shared.export(name, "wenet", streaming=streaming),
        load_experiment(shared.model(name)),
    )
    model, reverse_weight = experiment.model, 0.0 if streaming else 0.4
    assert {path.name for path in export.iterdir()} >= {
        "encoder.onnx",
        "ctc.onnx",
        "decoder.onnx",
        "units.txt",
    }
    for clip in read_data_list(shared.clips)[5:9]:
        features_1TF = experiment.frontend.compute(torch.from_numpy(samples(clip)))[None]
        runtime, lengths = WenetRuntime(export), torch.tensor([features_1TF.size(1)])
        log_probs_TV = torch.from_numpy(runtime.forward(features_1TF[0].numpy()))
        options = DecodeOptions(
            beam_size=4,
            reverse_weight=reverse_weight,
            **({"decoding_chunk_size": 16, "num_decoding_left_chunks": 4} if streaming else {}),
        )
        with torch.no_grad():
            sizes = options.chunk or (-1, -1)
            expected_TV = model.ctc.log_probs(model.encode(features_1TF, lengths, *sizes)[0])[0]
        torch.testing.assert_close(log_probs_TV, expected_TV, atol=1e-4, rtol=1e-5)
        best = log_probs_TV[None].topk(4)
        (candidates,) = prefix_beam_search(
            *best, torch.tensor([len(log_probs_TV)]), blank=0, beam_size=4
        )
        scores = runtime.rescore([one.ids for one in candidates], reverse_weight)
        totals = [score + 0.5 * one.score for score, one in zip(scores, candidates, strict=True)]
        found = decode(model, features_1TF, lengths, ["attention_rescoring"], options)[
            "attention_rescoring"
        ][0][0]
        assert candidates[int(np.argmax(totals))].ids == found.ids
        assert max(totals) == pytest.approx(found.score, abs=1e-3)


# ---- the example without this package


@pytest.mark.parametrize("name", ["whole", "stream"])
def test_example_decodes_without_this_package(shared: Shared, name: str) -> None:
    script, clips = ROOT / "examples/runtime/decode_wav.py", read_data_list(shared.clips)[:10]
    probe = (
        "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__'); "
        "assert not {'wenet_hs', 'torch'} & sys.modules.keys()"
    )
    command = [
        sys.executable,
        "-I",
        "-c",
        probe,
        str(script),
        str(shared.export(name, "onnxruntime")),
    ]
    done = subprocess.run(
        [*command, *(clip.wav for clip in clips)],
        env={},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    texts = [line.split("\t")[1] for line in done.stdout.splitlines()]
    assert texts == our_texts(shared.model(name), clips)
    assert len(set(texts)) > 5
