# SPDX-License-Identifier: Apache-2.0
"""Clips that are text files."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from wenet_hs.corpus import audio_check
from wenet_hs.corpus.audio_check import CheckedClip
from wenet_hs.data.audio import AudioError
from wenet_hs.manifest.data_list import Utterance


@pytest.fixture
def text_clips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The text of a clip is its duration or its fault.

    Returns the names of the clips that are read from now on.
    """
    names = []

    def check_clip(utterance: Utterance) -> CheckedClip:
        names.append(Path(utterance.wav).name)
        content = Path(utterance.wav).read_text()
        if content == "crash":
            os._exit(1)
        if not content[0].isdigit():
            return CheckedClip(None, content)
        return CheckedClip(utterance.duration or float(content), is_incomplete=content == "1.996")

    def segment_duration(utterance: Utterance) -> float:
        result = check_clip(replace(utterance, duration=None))
        if result.duration_s is None:
            raise AudioError(utterance.wav, "not audio", "restore the file")
        return result.duration_s

    monkeypatch.setattr(audio_check, "check_clip", check_clip)
    monkeypatch.setattr(audio_check, "segment_duration", segment_duration)
    return names
