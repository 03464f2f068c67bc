# SPDX-License-Identifier: Apache-2.0
"""Exported models: do the runtimes find what PyTorch finds, and how fast are they on one thread?

Real-time factor (seconds per second of audio) of encoder, CTC and greedy search, one clip at a
time, features not counted: the median over the rounds, in which PyTorch, onnxruntime and
onnxruntime with 8-bit weights alternate. Texts: how many clips have the same text in the runtime
and here. sherpa-onnx adds dither to the features of its slot `wenet_ctc`; beside it stands how
often five decodes of ours with that dither find the text of ours without it, and how often two of
them agree.

Example: python benchmarks/export.py --whole exp/softmax --stream exp/causal --test_data data/test/data.list \\
             --threads 1 --out benchmarks/notes/export_cpu
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import sherpa_onnx
import torch
from paired import Facts, alternate, body_of, make_parser, medians_ms, number, publish, ratios
from streaming import Sherpa
from torch import Tensor

from wenet_hs.data.audio import read_utterance
from wenet_hs.decode.ctc_search import prefix_beam_search
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.modes import decode
from wenet_hs.export.compare import greedy_ids
from wenet_hs.export.graphs import chunk_window
from wenet_hs.export.job import export_model
from wenet_hs.export.onnx_files import OnnxFile, run_chunks
from wenet_hs.export.options import ExportOptions
from wenet_hs.frontends import Fbank
from wenet_hs.manifest.data_list import read_data_list
from wenet_hs.model.encoders.stack import EncoderStack
from wenet_hs.model.encoders.stream import encode_streamed
from wenet_hs.model.experiment import Experiment, load_experiment
from wenet_hs.nn.layers import Chunk
from wenet_hs.score.edit_distance import ErrorCounts, count_errors
from wenet_hs.score.tables import markdown_table

RATE, CHUNK = 16000, Chunk(16, 4)
FILES = {"onnxruntime": "model.onnx", "onnxruntime int8": "model.int8.onnx"}
SILENCE_N = np.zeros(
    round(0.66 * RATE), np.float32
)  # sherpa-onnx waits for more features than a chunk needs
LONG_S = 300
DECODES = 5
"""Of each clip with dither."""

LogProbs = Callable[[Tensor], Tensor]
"""Features (T, F) → log-probabilities (T', V)."""


class Model:
    """A trained model, its exports and its clips."""

    def __init__(self, folder: Path, out: Path, test_data: Path, num_clips: int) -> None:
        self.experiment: Experiment = load_experiment(folder)
        self.model, self.out = self.experiment.model, out
        self.clips = read_data_list(test_data)[:num_clips]
        self.waves = [read_utterance(clip, RATE).numpy() for clip in self.clips]
        self.lines = dict[str, list[str]]()
        for runtime, streaming in (("sherpa", False), ("onnxruntime", False), ("sherpa", True)):
            if streaming and self.model.encoder.chunk_rule is None:
                continue
            name = f"{runtime}{'-streaming' if streaming else ''}"
            options = ExportOptions(
                model_dir=str(folder),
                out=out / name,
                runtime=runtime,  # type: ignore[arg-type]
                streaming=streaming,
                test_data=test_data,
                quantize="int8",
                max_int8_loss=1.0,
            )
            self.lines[name] = export_model(options)

    def describe(self) -> str:
        """Its size and its training."""
        config, parameters = (
            self.experiment.config,
            sum(value.numel() for value in self.model.parameters()),
        )
        steps = getattr(config.scheduler_conf, "total_steps", None)
        profile = config.dataset_conf.fbank_conf.profile
        return f"{parameters / 1e6:.1f} M parameters, {self.model.num_units} units, {steps} steps, profile {profile}"

    def sides(self, *, streaming: bool) -> dict[str, LogProbs]:
        """PyTorch and both files."""
        encoder = self.model.encoder
        window = (
            chunk_window(encoder, CHUNK)
            if streaming and isinstance(encoder, EncoderStack)
            else None
        )

        @torch.no_grad()
        def torch_side(features: Tensor) -> Tensor:
            given = features[None], torch.tensor([len(features)])
            if window is None:
                return self.model.ctc.log_probs(self.model.encode(*given)[0])[0]
            memory, _ = encode_streamed(encoder, *given, CHUNK)
            whole = (
                1 + (len(features) - window[0]) // window[1]
            ) * CHUNK.size  # frames of whole chunks
            return self.model.ctc.log_probs(memory[:, :whole])[0]

        def file_side(file: OnnxFile) -> LogProbs:
            if window is not None:
                return lambda features: run_chunks(file, features, *window)
            return lambda features: file.run(features[None], torch.tensor([len(features)]))[0][0]

        folder = self.out / ("sherpa-streaming" if streaming else "sherpa")
        return {"PyTorch": torch_side} | {
            name: file_side(OnnxFile(folder / file)) for name, file in FILES.items()
        }

    def text(self, log_probs: Tensor) -> str:
        return self.experiment.tokenizer.decode(greedy_ids(log_probs, self.model.ctc.blank))

    def features(self, wave: np.ndarray) -> Tensor:
        return self.experiment.frontend.compute(torch.from_numpy(wave))


def offline_texts(model: Model, slot: str, file: str = "model.onnx") -> list[str]:
    """What sherpa-onnx finds in whole clips."""
    make, folder = getattr(sherpa_onnx.OfflineRecognizer, f"from_{slot}"), model.out / "sherpa"
    recognizer, texts = make(model=str(folder / file), tokens=str(folder / "tokens.txt")), []
    for wave in model.waves:
        stream = recognizer.create_stream()
        stream.accept_waveform(RATE, wave)
        recognizer.decode_stream(stream)
        texts.append(stream.result.text)
    return texts


def online_text(model: Model, wave: np.ndarray) -> str:
    """What sherpa-onnx finds in a stream."""
    side = Sherpa(str(model.out / "sherpa-streaming"), CHUNK.size)
    side.start()
    for begin in range(0, len(wave), RATE // 2):
        side.feed(wave[begin : begin + RATE // 2])
    return side.end()


def share(one: Sequence[str], other: Sequence[str]) -> str:
    """How many texts are equal.

    Spaces at the ends and between are those of each side's own rules.
    """
    equal = sum(a.split() == b.split() for a, b in zip(one, other, strict=True))
    return f"{equal} of {len(one)} ({equal / len(one):.1%})"


def dithered_agreement(model: Model, ours: Sequence[str]) -> str:
    """Decodes of ours with the dither of sherpa-onnx's wenet_ctc, against ours without, and against
    each other.
    """
    frontend, side = model.experiment.frontend, model.sides(streaming=False)["PyTorch"]
    assert isinstance(frontend, Fbank)
    profile = model.experiment.config.dataset_conf.fbank_conf.profile
    dithered = Fbank(RATE, num_mel_bins=frontend.width, dither=1.0, profile=profile)
    decodes = [
        [
            model.text(
                side(
                    dithered.compute(
                        torch.from_numpy(wave), torch.Generator().manual_seed(seed + row)
                    )
                )
            )
            for row, wave in enumerate(model.waves)
        ]
        for seed in range(0, 10_000 * DECODES, 10_000)
    ]
    each_other = share(sum(decodes, []), sum([*decodes[1:], decodes[0]], []))
    return f"ours with that dither: {share(sum(decodes, []), [*ours] * DECODES)}; two of them: {each_other}"


def rescoring_agreement(model: Model, num_clips: int = 30) -> str:
    """Attention rescoring with decoder.onnx against ours: texts, and the largest difference of a
    score.
    """
    whole, decoder = (
        OnnxFile(model.out / "onnxruntime" / name) for name in ("model.onnx", "decoder.onnx")
    )
    special, options, equal, worst = model.model.special, DecodeOptions(beam_size=10), 0, 0.0
    for wave in model.waves[:num_clips]:
        features = model.features(wave)[None]
        lengths = torch.tensor([features.size(1)])
        log_probs, frames, memory = whole.run(features, lengths)
        best = log_probs.topk(min(10, log_probs.size(2)))
        (nbest,) = prefix_beam_search(*best, frames, blank=model.model.ctc.blank, beam_size=10)
        longest = max(len(one.ids) for one in nbest) + 1
        rows = [[special.sos, *one.ids, *[0] * (longest - 1 - len(one.ids))] for one in nbest]
        scores = decoder.run(
            torch.tensor(rows), torch.tensor([len(one.ids) + 1 for one in nbest]), memory
        )[0]
        totals = [
            sum(float(score[place, unit]) for place, unit in enumerate([*one.ids, special.eos]))
            + 0.5 * one.score
            for score, one in zip(scores, nbest, strict=True)
        ]
        found = decode(model.model, features, lengths, ["attention_rescoring"], options)[
            "attention_rescoring"
        ][0][0]
        row = int(np.argmax(totals))
        equal += nbest[row].ids == found.ids
        worst = max(worst, abs(totals[row] - found.score) / max(1, abs(found.score)))
    return f"{equal} of {len(model.waves[:num_clips])}, scores within {worst:.1e}"


def error_rate(model: Model, texts: Sequence[str]) -> str:
    counts = ErrorCounts()
    for clip, text in zip(model.clips, texts, strict=True):
        counts += count_errors(list(clip.txt), list(text))
    return "" if counts.rate is None else f"{counts.rate:.2%}"


def compare_texts(whole: Model | None, stream: Model | None) -> list[list[str]]:
    """Rows: the runtime, the clips with our text, the note beside it."""
    rows = list[list[str]]()
    if whole is not None:
        ours = [model_text(whole, wave) for wave in whole.waves]
        int8 = offline_texts(whole, "fire_red_asr_ctc", "model.int8.onnx")
        rows.append(
            [
                "sherpa-onnx fire_red_asr_ctc",
                share(offline_texts(whole, "fire_red_asr_ctc"), ours),
                "",
            ]
        )
        rates = f"CER {error_rate(whole, ours)}, int8 {error_rate(whole, int8)}"
        rows.append(["the same, int8", share(int8, ours), rates])
        if whole.model.decoder is not None:
            rows.append(["onnxruntime, attention rescoring", rescoring_agreement(whole), ""])
    if stream is not None:
        ours = [model_text(stream, wave) for wave in stream.waves]
        found = sum((offline_texts(stream, "wenet_ctc") for _ in range(DECODES)), [])
        note = dithered_agreement(stream, ours)
        rows.append(
            ["sherpa-onnx wenet_ctc, with its dither", share(found, [*ours] * DECODES), note]
        )
        waves = [np.concatenate([wave, SILENCE_N]) for wave in stream.waves]
        ours, found = (
            [model_text(stream, wave, True) for wave in waves],
            [online_text(stream, wave) for wave in waves],
        )
        rows.append(
            [
                "sherpa-onnx online, chunks of 16, 4 left",
                share(found, ours),
                f"CER {error_rate(stream, ours)}",
            ]
        )
        repeats = -(-LONG_S * RATE // sum(map(len, waves)))
        long = np.concatenate(waves * repeats)[: LONG_S * RATE]
        text = model_text(stream, long, True)
        rows.append(
            [
                f"a stream of {LONG_S} s",
                share([online_text(stream, long)], [text]),
                f"{len(text)} characters",
            ]
        )
    return rows


def model_text(model: Model, wave: np.ndarray, streaming: bool = False) -> str:
    return model.text(model.sides(streaming=streaming)["PyTorch"](model.features(wave)))


def measure(model: Model, rounds: int, *, streaming: bool) -> tuple[list[list[str]], Facts]:
    """Rows of the real-time factor on 20 clips of the list, those of at least a chunk."""
    features = [one for one in map(model.features, model.waves) if len(one) >= 67][:20]
    seconds = sum(map(len, features)) / 100
    sides = {
        name: lambda side=side: [greedy_ids(side(one), model.model.ctc.blank) for one in features]
        for name, side in model.sides(streaming=streaming).items()
    }
    times = alternate(sides, rounds, seconds=0.05)
    ms, faster = medians_ms(times), ratios(times, "PyTorch")
    what = "chunks of 16, 4 left" if streaming else "whole clips"
    rows = [
        [what, name, f"{ms[name] / 1e3 / seconds:.4f}", f"{number(faster[name])}×"]
        for name in sides
    ]
    return rows, {"what": what, "audio_s": seconds, "ms": ms, "faster": faster}


def main() -> None:
    """Compare, measure and publish."""
    parser = make_parser(__doc__, rounds=11)
    parser.add_argument(
        "--whole", type=Path, help="model folder, trained with fbank_conf.profile wenet"
    )
    parser.add_argument(
        "--stream", type=Path, help="model folder of a causal model, trained with profile sherpa"
    )
    parser.add_argument("--test_data", type=Path, required=True, help="data.list of the clips")
    parser.add_argument(
        "--num_clips", type=int, default=100, help="its first clips (default: %(default)s)"
    )
    args = parser.parse_args()
    if args.device != "cpu" or args.threads != 1:
        parser.error("--device and --threads: the exports are compared on one thread of a CPU")
    torch.set_num_threads(1)
    with TemporaryDirectory() as temporary:
        models = {
            name: Model(folder, Path(temporary) / name, args.test_data, args.num_clips)
            for name, folder in (("whole", args.whole), ("stream", args.stream))
            if folder is not None
        }
        texts = compare_texts(models.get("whole"), models.get("stream"))
        measured = [
            measure(model, args.rounds, streaming=name == "stream")
            for name, model in models.items()
        ]
        lines = [f"- {name}: {model.describe()}" for name, model in models.items()]
        lines += [
            f"- {name}, {kind}: {line}"
            for name, model in models.items()
            for kind, found in model.lines.items()
            for line in found
        ]
    speeds = markdown_table(
        ["input", "side", "real-time factor", "faster by"],
        [row for rows, _ in measured for row in rows],
    )
    table = markdown_table(["runtime", "same text", "note"], texts)
    text = f"{body_of(__doc__)}\n\n{table}\n\n{speeds}\n\n" + "\n".join(lines)
    facts: Facts = {"texts": texts, "speeds": [record for _, record in measured], "exports": lines}
    publish("Exported models in their runtimes", text, facts, device="cpu", out=args.out)


if __name__ == "__main__":
    main()
