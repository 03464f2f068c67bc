# SPDX-License-Identifier: Apache-2.0
"""The cases by name. A new case needs one line here."""

from collections.abc import Callable

from case_recorder import CaseRecorder
from cases import (
    errors,
    exports,
    gradients,
    language_models,
    lists,
    other_commands,
    recognition,
    reports,
    scores,
    trainings,
    units_and_trees,
)

ERRORS = "errors"
"""This case begins when all others have ended: it uses two processes."""
CASES: dict[str, Callable[[CaseRecorder], None]] = {
    "exports": exports.record_exports,  # the slowest ones begin first
    "training-models": trainings.record_models,
    "streams": recognition.record_streams,
    "modes": recognition.record_modes,
    "training-heads": trainings.record_heads,
    "training-data": trainings.record_data,
    "training-continued": trainings.record_continued,
    "reports": reports.record_reports,
    "fusion": recognition.record_fusion,
    "language-models": language_models.record_language_models,
    "lists-elan": lists.record_elan,
    "lists-praat": lists.record_praat,
    "lists-kaldi": lists.record_kaldi,
    "lists-tables": lists.record_tables,
    "lists-folders": lists.record_folders,
    "lists-releases": lists.record_releases,
    "units": units_and_trees.record_units,
    "trees": units_and_trees.record_trees,
    "cmvn": units_and_trees.record_cmvn,
    "gradients": gradients.record_gradients,
    "alignments": recognition.record_alignments,
    "transcriptions": recognition.record_transcriptions,
    "scores": scores.record_scores,
    "comparisons": scores.record_comparisons,
    "checks": scores.record_checks,
    "packs": reports.record_packs,
    "help": other_commands.record_help,
    "pretrained": other_commands.record_pretrained,
    ERRORS: errors.record_error_lines,
}
