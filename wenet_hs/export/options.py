# SPDX-License-Identifier: Apache-2.0
"""The flags of `wenet-hs export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wenet_hs.base.options import REQUIRED, check_values, option
from wenet_hs.export.graphs import Runtime
from wenet_hs.nn.layers import Chunk

MAX_CLIPS = 100
"""The first ones of a test list are used."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The flags of `wenet-hs export`."""

    model_dir: str = option(
        REQUIRED, "experiment folder, ours or WeNet's, or a packed model: folder, ZIP, hf://…"
    )
    out: Path = option(REQUIRED, "new folder", metavar="DIR")
    runtime: Runtime = option(
        "onnxruntime",
        "what will run it: onnxruntime (any program), sherpa-onnx, or WeNet's runtime",
        flags=("--for",),
    )
    streaming: bool = option(False, "chunk by chunk instead of whole utterances")
    chunk: int | None = option(None, "with --streaming: encoder frames per chunk (default: 16)")
    left: int | None = option(
        None, "with --streaming: chunks before its own that a frame sees (default: 4)"
    )
    test_data: Path | None = option(
        None, f"data.list of clips to compare on, the first {MAX_CLIPS} (default: noise)"
    )
    quantize: Literal["int8"] | None = option(
        None, "also write model.int8.onnx, with 8-bit weights; needs --test_data"
    )
    max_int8_loss: float = option(
        0.05, "refuse 8-bit weights that change a larger share of the units of fp32"
    )

    def __post_init__(self) -> None:
        """Raises ValueError for a value that is wrong, or that has no effect with the others."""
        check_values(self)
        self._check_size_of_stream("chunk", self.chunk)
        self._check_size_of_stream("left", self.left)
        if not 0 <= self.max_int8_loss <= 1:
            raise ValueError(f"max_int8_loss {self.max_int8_loss:g}: must be from 0 to 1")
        if self.quantize and self.test_data is None:
            raise ValueError("quantize int8: its loss is measured on speech; give --test_data")
        if self.quantize and self.runtime == "wenet":
            raise ValueError(
                "quantize int8: WeNet's runtime has fixed names of files; use --for onnxruntime or sherpa"
            )

    def _check_size_of_stream(self, name: str, size: int | None) -> None:
        """Raises ValueError if a size of chunks is given without a stream, or is below 1."""
        if size is None:
            return
        if not self.streaming:
            raise ValueError(f"{name} {size}: only with --streaming; add it, or leave this out")
        if size < 1:
            raise ValueError(
                f"{name} {size}: must be at least 1; the runtimes keep caches of a fixed size"
            )

    @property
    def stream(self) -> Chunk | None:
        """The chunks of the stream; None: whole utterances.

        Both sizes must be set: `choose_chunks` sets those that the user did not give.
        """
        if not self.streaming:
            return None
        assert self.chunk is not None and self.left is not None
        return Chunk(self.chunk, self.left)
