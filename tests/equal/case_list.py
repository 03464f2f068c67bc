# SPDX-License-Identifier: Apache-2.0
"""The cases by name. A new case needs one line here."""

from collections.abc import Callable

from case_recorder import CaseRecorder
from cases import (
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


CASES: dict[str, Callable[[CaseRecorder], None]] = {
    "lists-elan": lists.record_elan,
    "lists-praat": lists.record_praat,
    "lists-kaldi": lists.record_kaldi,
    "lists-tables": lists.record_tables,
    "lists-folders": lists.record_folders,
    "lists-releases": lists.record_releases,
    "units": units_and_trees.record_units,
    "trees": units_and_trees.record_trees,
    "cmvn": units_and_trees.record_cmvn,
    "training-heads": trainings.record_heads,
    "training-models": trainings.record_models,
    "training-continued": trainings.record_continued,
    "gradients": gradients.record_gradients,
    "language-models": language_models.record_language_models,
    "modes": recognition.record_modes,
    "fusion": recognition.record_fusion,
    "streams": recognition.record_streams,
    "alignments": recognition.record_alignments,
    "transcriptions": recognition.record_transcriptions,
    "exports": exports.record_exports,
    "scores": scores.record_scores,
    "comparisons": scores.record_comparisons,
    "checks": scores.record_checks,
    "reports": reports.record_reports,
    "packs": reports.record_packs,
    "help": other_commands.record_help,
    "pretrained": other_commands.record_pretrained,
}
