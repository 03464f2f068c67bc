# SPDX-License-Identifier: Apache-2.0
"""8-bit weights: how many units of greedy search they change, and whether that is too many."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wenet_hs.export.clips import Clips
from wenet_hs.export.compare import greedy_ids, run_exported_ctc
from wenet_hs.export.graphs import MODEL
from wenet_hs.export.options import ExportOptions
from wenet_hs.model.experiment import Experiment
from wenet_hs.nn.layers import Chunk
from wenet_hs.score.edit_distance import ErrorCounts, count_errors
from wenet_hs.tree.errors import CheckpointError, DataError


@dataclass(frozen=True, kw_only=True)
class Int8Errors:
    """Errors of greedy search with MODEL (fp32) and with its copy with 8-bit weights (int8)."""

    fp32: ErrorCounts
    """Of fp32 against the transcripts."""
    int8: ErrorCounts
    """Of int8 against the transcripts."""
    changed: ErrorCounts
    """Of int8 against fp32."""

    def describe(self) -> list[str]:
        """Two lines: how many units changed, and the error rates of both."""
        counts = f"{self.changed.errors} of {self.changed.num_units}"
        share = _error_rate(self.changed)
        fp32_rate = _error_rate(self.fp32)
        int8_rate = _error_rate(self.int8)
        return [
            f"int8 changes {counts} units of fp32 ({share:.1%})",
            f"unit error rate, greedy: fp32 {fp32_rate:.1%}, int8 {int8_rate:.1%}",
        ]


def _error_rate(counts: ErrorCounts) -> float:
    """Errors per unit of the reference; their number if the reference has no unit."""
    return counts.errors / max(1, counts.num_units)


def count_int8_errors(
    folder: Path, int8_name: str, experiment: Experiment, clips: Clips, stream: Chunk | None
) -> Int8Errors:
    """Runs MODEL and the file INT8_NAME of a folder on clips with transcripts.

    `stream`: the chunks of a stream; None: whole utterances.
    """
    model = experiment.model
    blank = model.ctc.blank
    fp32_errors = ErrorCounts()
    int8_errors = ErrorCounts()
    changed = ErrorCounts()
    for utterance, features in zip(clips.utterances, clips.features, strict=True):
        fp32_log_probs = run_exported_ctc(folder, model, features, stream, MODEL)
        int8_log_probs = run_exported_ctc(folder, model, features, stream, int8_name)
        transcript = _as_texts(experiment.tokenizer.encode(utterance.txt))
        fp32_units = _as_texts(greedy_ids(fp32_log_probs, blank))
        int8_units = _as_texts(greedy_ids(int8_log_probs, blank))
        fp32_errors += count_errors(transcript, fp32_units)
        int8_errors += count_errors(transcript, int8_units)
        changed += count_errors(fp32_units, int8_units)
    return Int8Errors(fp32=fp32_errors, int8=int8_errors, changed=changed)


def _as_texts(ids: Sequence[int]) -> list[str]:
    """The ids as texts, which `count_errors` compares."""
    return [str(unit_id) for unit_id in ids]


def check_int8_errors(errors: Int8Errors, options: ExportOptions) -> None:
    """Raises CheckpointError if 8-bit weights change more units than `max_int8_loss` allows.

    Raises DataError if there are no units to compare.
    """
    share = errors.changed.rate
    if share is None:
        raise DataError(
            str(options.test_data), "the model finds no unit in these clips", "give clips of speech"
        )
    if share > options.max_int8_loss:
        raise CheckpointError(
            options.model_dir,
            f"int8 changes {share:.1%} of the units of fp32, more than {options.max_int8_loss:.1%}",
            "leave out --quantize, or raise --max_int8_loss",
        )
