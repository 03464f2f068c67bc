# SPDX-License-Identifier: Apache-2.0
"""The catalogue has exactly the texts that the pages show."""

import re
from pathlib import Path

from wenet_hs.app import pages

TEMPLATES = Path(pages.__file__).with_name("templates")
SOURCE = "\n".join(path.read_text("utf-8") for path in TEMPLATES.iterdir())


def test_every_text_of_a_page_is_in_the_catalogue_and_the_reverse() -> None:
    texts = pages.read_texts()
    named = {*re.findall(r"\bt\(['\"](\w+)['\"][,)]", SOURCE), *re.findall(r"\btexts\.(\w+)", SOURCE)}
    named |= {*re.findall(r"\btext\(['\"](\w+)['\"][,)]", Path(pages.__file__).read_text("utf-8"))}
    starts = {*re.findall(r"\bt\(['\"](\w+_)['\"] ~", SOURCE)}
    assert named and starts and named <= texts.keys()
    chosen = {name for name in ("letter_apostrophe", "no_normalize", "drop_overlaps") if f'"{name}"' in SOURCE}
    assert {key for key in texts if not key.startswith(tuple(starts))} <= named | chosen


def test_templates_have_no_text_of_their_own() -> None:
    shown = re.sub(r"(?s)\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", " ", SOURCE)
    assert {*re.findall(r"[^\W\d_]{2,}", shown)} <= {"CER"}
