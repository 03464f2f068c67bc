# SPDX-License-Identifier: Apache-2.0
"""The catalogue has exactly the texts that the pages show."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from wenet_hs.annotation.corrections import FormatName
from wenet_hs.app import commands, pages
from wenet_hs.base.jobs import State
from wenet_hs.corpus.columns import COLUMNS
from wenet_hs.corpus.output import SPLITS
from wenet_hs.model.modes import MODES
from wenet_hs.recipes.own_options import FORMS

TEMPLATES = Path(pages.__file__).with_name("templates")
KEYS = ("play", "next", "confirm", "step", "large_step", "position")
CHOSEN: dict[str, Iterable[str]] = {
    "allowed_": ("unknown", "yes", "no"),
    "compare_": ("speakers", "utterances"),
    "content_": COLUMNS,
    "download_": get_args(FormatName),
    "form_": FORMS,
    "job_": ("prepare", "train", "time", "transcribe", "pack"),
    "key_": (*KEYS, *(f"{key}_does" for key in KEYS)),
    "mode_": MODES,
    "now_": ("prepare", "train", "transcribe", "pack"),
    "rejected_": ("key", "text", "path", "reason"),
    "set_": (*SPLITS, *(f"{name}_is" for name in SPLITS)),
    "size_": commands.SIZES,
    "start_": ("nothing", "model", "encoder"),
    "state_": get_args(State),
    "step_": pages.STEPS,
    "units_": ("cer", "per", "wer"),
}
"""Beginning of a key → the ends that the pages put to it."""
SOURCE = "\n".join(path.read_text("utf-8") for path in TEMPLATES.iterdir())


def test_every_text_of_a_page_is_in_the_catalogue_and_the_reverse() -> None:
    texts = pages.read_texts()
    named = {
        *re.findall(r"\bt\(['\"](\w+)['\"][,)]", SOURCE),
        *re.findall(r"\btexts\.(\w+)", SOURCE),
    }
    named |= {*re.findall(r"\btext\(['\"](\w+)['\"][,)]", Path(pages.__file__).read_text("utf-8"))}
    starts = {*re.findall(r"\bt\(['\"](\w+_)['\"] ~", SOURCE)}
    assert named and starts and named <= texts.keys()
    assert starts == CHOSEN.keys()
    chosen = {f"{start}{end}" for start, ends in CHOSEN.items() for end in ends}
    chosen |= {
        name
        for name in ("letter_apostrophe", "no_normalize", "drop_overlaps")
        if f'"{name}"' in SOURCE
    }
    assert texts.keys() == named | chosen


def test_templates_have_no_text_of_their_own() -> None:
    shown = re.sub(r"(?s)\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", " ", SOURCE)
    assert {*re.findall(r"[^\W\d_]{2,}", shown)} <= {"CER"}
