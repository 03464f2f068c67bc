# SPDX-License-Identifier: Apache-2.0
"""Folders of recordings with a text beside each: `<lang>/<speaker>/<name>.wav` and `<name>.txt`.

Example: wenet-hs prepare wav_txt --corpus recordings --out data
"""

from dataclasses import dataclass
from typing import Any

from wenet_hs.base.options import recorded_options
from wenet_hs.corpus.audio_check import AudioOptions
from wenet_hs.corpus.output import Rejected, write_corpus
from wenet_hs.manifest.data_list import Utterance


@dataclass(frozen=True, kw_only=True)
class WavTxtOptions(AudioOptions):
    """The options of `prepare wav_txt`."""


def prepare(options: WavTxtOptions) -> dict[str, Any]:
    """Write the lists: the first clips for dev and test, the rest for training.

    Returns the content of stats.json.
    """
    utterances = list[Utterance]()
    rejected = list[Rejected]()
    for audio in sorted(options.corpus.glob("*/*/*.wav")):
        lang, speaker = audio.parts[-3:-1]
        key = f"{lang}-{speaker}-{audio.stem}"
        text = audio.with_suffix(".txt")
        if text.is_file():
            txt = " ".join(text.read_text("utf-8").split())
            utterances.append(
                Utterance(key=key, wav=str(audio), txt=txt, lang=lang, speaker=speaker)
            )
        else:
            rejected.append(Rejected(key, str(audio), f"missing: no {text.name} beside it", lang))
    checker = options.make_checker()
    usable, unusable = checker.check(utterances, "clips")
    splits = {"test": usable[:1], "dev": usable[1:2], "train": usable[2:]}
    facts: dict[str, Any] = {"corpus": "wav_txt", "options": recorded_options(options)}
    facts["num_incomplete"] = checker.count_incomplete(splits)
    langs: dict[str, dict[str, Any]] = {utterance.lang or "": {} for utterance in usable}
    return write_corpus(
        options.out, splits, rejected + unusable, facts, langs, max_rejected=options.max_rejected
    )
