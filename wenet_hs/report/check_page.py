# SPDX-License-Identifier: Apache-2.0
"""The HTML page of `wenet-hs check`: summary, and the worst utterances of each kind with their
audio.
"""

from collections.abc import Sequence
from itertools import zip_longest

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
        max_players: number of utterances with audio: the worst one of each kind, the second one,
            and so on.
    """
    clips = {u.key: u for of_set in checked.sets.values() for u in of_set}
    worst = [found[:_MAX_SHOWN] for found in checked.findings.values()]
    unreadable = {found.key for kind in NO_AUDIO for found in checked.findings.get(kind, ())}
    in_turn = dict.fromkeys(
        found.key for of_rank in zip_longest(*worst) for found in of_rank if found
    )
    chosen = [key for key in in_turn if key not in unreadable][:max_players]
    faulty, remarked = checked.keys(is_fault=True), checked.keys(is_fault=False)
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
        num_remarked=len(remarked - faulty),
        fault_rule=FAULT_RULE,
        remark_rule=REMARK_RULE,
        urls=embed_audio(clips, chosen, _AUDIO_BYTES).urls,
        max_players=max_players,
        max_shown=_MAX_SHOWN,
    )
