# SPDX-License-Identifier: Apache-2.0
"""WeNet's C++ runtime as its order of calls in onnxruntime (runtime/core/decoder: asr_model.cc,
onnx_asr_model.cc).

Dimension key: T frames, F features, V units.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime


class WenetRuntime:
    """Reads the metadata, resets the caches, gives chunks with cached features, rescoring at the
    end.
    """

    def __init__(self, folder: Path) -> None:
        self.encoder, self.ctc, self.decoder = (
            onnxruntime.InferenceSession(str(folder / f"{name}.onnx"))
            for name in ("encoder", "ctc", "decoder")
        )
        read = self.encoder.get_modelmeta().custom_metadata_map
        names = "output_size num_blocks head cnn_module_kernel subsampling_rate right_context sos_symbol eos_symbol"
        self.conf = {
            key: int(read[key])
            for key in f"{names} is_bidirectional_decoder chunk_size left_chunks".split()
        }
        size, self.kept = (
            self.conf["chunk_size"],
            max(0, self.conf["chunk_size"] * self.conf["left_chunks"]),
        )
        self.streams = size > 0
        self.offset, self.outputs = self.kept if self.streams else 0, list[np.ndarray]()
        blocks, head, width = (self.conf[name] for name in ("num_blocks", "head", "output_size"))
        self.att_cache = np.zeros(
            (blocks, head, self.kept if self.streams else 0, width // head * 2), np.float32
        )
        self.cnn_cache = np.zeros(
            (blocks, 1, width, self.conf["cnn_module_kernel"] - 1), np.float32
        )

    def parts(self, features_TF: np.ndarray) -> Iterator[np.ndarray]:
        """The features of each call: those cached of the call before, and new ones; the last call
        has fewer.
        """
        if not self.streams:
            yield features_TF
            return
        rate, context, size = (
            self.conf[name] for name in ("subsampling_rate", "right_context", "chunk_size")
        )
        needed, cached = (size - 1) * rate + context + 1, features_TF[:0]
        while len(features_TF):
            given = np.concatenate([cached, features_TF[:needed]])
            features_TF, needed = features_TF[needed:], size * rate
            cached = given[len(given) - (1 + context - rate) :]
            if len(given) >= context + 1:
                yield given

    def forward(self, features_TF: np.ndarray) -> np.ndarray:
        """The log-probabilities (T', V) of all frames."""
        found = []
        for part in self.parts(features_TF):
            size = self.conf["chunk_size"]
            mask = np.ones((1, 1, self.kept + size), np.bool_) if self.streams else None
            if mask is not None:
                number = self.offset // size - self.conf["left_chunks"]
                if number < self.conf["left_chunks"]:
                    mask[..., : (self.conf["left_chunks"] - number) * size] = False
            values = {"chunk": part[None], "offset": np.array(self.offset), "att_mask": mask}
            values |= {
                "required_cache_size": np.array(self.kept),
                "att_cache": self.att_cache,
                "cnn_cache": self.cnn_cache,
            }
            inputs = {one.name: values[one.name] for one in self.encoder.get_inputs()}  # by name
            output, self.att_cache, self.cnn_cache = self.encoder.run(None, inputs)
            self.offset += output.shape[1]
            self.outputs.append(output)
            found.append(self.ctc.run(None, {self.ctc.get_inputs()[0].name: output})[0][0])
        return np.concatenate(found)

    def rescore(self, nbest: list[tuple[int, ...]], reverse_weight: float) -> list[float]:
        """AttentionRescoring: the inputs of the decoder by position."""
        longest, sos, eos = (
            max(map(len, nbest)) + 1,
            self.conf["sos_symbol"],
            self.conf["eos_symbol"],
        )
        hyps = np.array([[sos, *ids, *[0] * (longest - 1 - len(ids))] for ids in nbest])
        three = (
            hyps,
            np.array([len(ids) + 1 for ids in nbest]),
            np.concatenate(self.outputs, axis=1),
        )
        names = [one.name for one in self.decoder.get_inputs()]
        score, r_score = self.decoder.run(None, dict(zip(names, three, strict=True)))
        is_both, scores = self.conf["is_bidirectional_decoder"] and reverse_weight > 0, []
        for row, ids in enumerate(nbest):
            left = sum(score[row, place, unit] for place, unit in enumerate([*ids, eos]))
            right = (
                sum(r_score[row, place, unit] for place, unit in enumerate([*ids[::-1], eos]))
                if is_both
                else 0
            )
            scores.append(left * (1 - reverse_weight) + right * reverse_weight)
        return scores
