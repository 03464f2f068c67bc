# SPDX-License-Identifier: Apache-2.0
"""consent.tsv: what it may contain, which recordings its lines name, and its summary."""

from pathlib import Path

import pytest

from wenet_hs.corpus.consent import (
    Consent,
    find_unmatched,
    match_consent,
    read_consent,
    set_consents,
    summarise_consent,
)
from wenet_hs.tree.errors import DataError


def test_it_is_written_line_by_line_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "consent.tsv"
    assert read_consent(path) == {}
    set_consents(path, {"/a/talk.wav": Consent(False, " not\tbefore\n2030 ")})
    set_consents(path, {"b.wav": Consent(True), "c.wav": Consent(None, "asked")})
    rows = [
        "recording\tallowed\tnote",
        "/a/talk.wav\tno\tnot\\tbefore\\n2030",
        "b.wav\tyes\t",
        "c.wav\t\tasked",
    ]
    assert path.read_text("utf-8").splitlines() == rows
    assert read_consent(path)["c.wav"] == Consent(None, "asked")
    set_consents(path, {"c.wav": Consent()})
    assert [*read_consent(path)] == ["/a/talk.wav", "b.wav"]


def test_a_path_with_a_tab_is_one_cell(tmp_path: Path) -> None:
    set_consents(tmp_path / "consent.tsv", {"/a\tb/talk.wav": Consent(False, "no")})
    found = read_consent(tmp_path / "consent.tsv")
    assert dict(match_consent(found, ["/a\tb/talk.wav"])) == {
        "/a\tb/talk.wav": Consent(False, "no")
    }
    assert find_unmatched(found, ["/a\tb/talk.wav"]) == []


@pytest.mark.parametrize("line", ["talk.wav\tperhaps", "\tno", "a\tno\tnote\tmore"])
def test_a_line_of_another_form_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "consent.tsv"
    path.write_text(f"recording\tallowed\tnote\n\n{line}\n", "utf-8")
    with pytest.raises(
        DataError, match=r"consent.tsv:3: not a line of consent; write the recording, yes, no"
    ):
        read_consent(path)


def test_a_line_written_by_hand_may_have_the_end_of_the_path(tmp_path: Path) -> None:
    path = tmp_path / "consent.tsv"
    path.write_text("talk.wav\tYes\n2019/talk.wav\tNO\tby phone\n", "utf-8")
    recordings = ["/x/2019/talk.wav", "/x/2020/talk.wav", "/x/2020/my-talk.wav"]
    found = [one for _, one in match_consent(read_consent(path), recordings)]
    assert found == [Consent(False, "by phone"), Consent(True), Consent()]


def test_letters_and_case_of_a_name_may_be_written_in_another_way() -> None:
    lines = {
        "r\u00e9cit.wav": Consent(False),
        "Talk.wav": Consent(False, "she said no"),
        "old/x.wav": Consent(True),
    }
    recordings = ["/a/re\u0301cit.wav", "/a/talk.WAV", "/Old/x.wav", "/old/X.wav"]
    found = [one for _, one in match_consent(lines, recordings)]
    assert found == [Consent(False), Consent(False, "she said no"), Consent(), Consent(True)]
    both = {"Talk.wav": Consent(True), "talk.wav": Consent(False)}
    found = [
        one.is_allowed
        for _, one in match_consent(both, ["/a/Talk.wav", "/a/talk.wav", "/a/TALK.wav"])
    ]
    assert found == [True, False, False]
    assert find_unmatched(lines | both, recordings) == []
    assert find_unmatched(
        lines | {"tal.wav": Consent(False), "y.wav": Consent(True)}, recordings
    ) == ["tal.wav"]


def test_no_wins_over_yes_for_one_name_and_no_other_name_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "consent.tsv"
    path.write_text("talk.wav\tno\nMasse.wav\tyes\ntalk.wav\tyes\n", "utf-8")
    found = read_consent(path)
    assert found["talk.wav"] == Consent(False)
    assert [one for _, one in match_consent(found, ["/a/masse.WAV", "/a/Maße.wav"])] == [
        Consent(True),
        Consent(),
    ]


def test_the_summary_names_no_recording() -> None:
    assert summarise_consent([Consent(), Consent()]) == []
    found = summarise_consent(
        [Consent(True, "for research"), Consent(True, "for research"), Consent()]
    )
    assert found == [
        "Recordings in the training: 3. Stated as allowed: 2.",
        "2 of them: for research",
    ]
