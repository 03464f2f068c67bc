# SPDX-License-Identifier: Apache-2.0
"""The HTML page of `wenet-hs check`.

It has a summary, and the worst utterances of each kind of finding with their audio.
"""

from collections.abc import Sequence
from itertools import chain, zip_longest

from wenet_hs.corpus.check import FAULT_RULE, FAULTS, KINDS, NO_AUDIO, REMARK_RULE, Checked
from wenet_hs.corpus.output import hours_of
from wenet_hs.report.audio import embed_audio
from wenet_hs.report.render import render_page

MAX_PLAYERS = 40
_AUDIO_BYTES = 10_000_000
_MAX_SHOWN = 10  # utterances per kind


def build_check_page(
    checked: Checked, *, facts: Sequence[str], title: str, max_players: int = MAX_PLAYERS
) -> str:
    """The HTML of one self-contained page. Its content security policy forbids network access.

    Args:
        facts: lines above the summary.
        max_players: the largest number of utterances with audio, see `_choose_played`. There are
            fewer if their audio has more than _AUDIO_BYTES.
    """
    utterances = chain.from_iterable(checked.sets.values())
    clips = {utterance.key: utterance for utterance in utterances}
    audio = embed_audio(clips, _choose_played(checked, max_players), _AUDIO_BYTES)
    faulty = checked.keys(is_fault=True)
    only_remarked = checked.keys(is_fault=False) - faulty
    return render_page(
        "check.html",
        title=title,
        checked=checked,
        kinds=KINDS,
        faults=FAULTS,
        clips=clips,
        hours=sum(map(hours_of, checked.sets.values())),
        facts=facts,
        num_faulty=len(faulty),
        num_remarked=len(only_remarked),
        fault_rule=FAULT_RULE,
        remark_rule=REMARK_RULE,
        urls=audio.urls,
        max_players=max_players,
        max_shown=_MAX_SHOWN,
    )


def _choose_played(checked: Checked, max_players: int) -> list[str]:
    """The keys of the utterances that get audio, at most `max_players`.

    First comes the worst utterance of each kind of finding, then the second one of each kind, and
    so on. Utterances whose audio cannot be read are left out.
    """
    unreadable = set[str]()
    for kind in NO_AUDIO:
        unreadable |= {finding.key for finding in checked.findings.get(kind, ())}
    shown = [findings[:_MAX_SHOWN] for findings in checked.findings.values()]
    keys = dict[str, None]()  # as an ordered set: an utterance can have several kinds
    for findings_of_rank in zip_longest(*shown):
        for finding in findings_of_rank:
            # None: this kind has fewer findings than others.
            if finding is not None and finding.key not in unreadable:
                keys[finding.key] = None
    return [*keys][:max_players]
