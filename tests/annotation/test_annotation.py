# SPDX-License-Identifier: Apache-2.0
"""Files of annotation tools: what is written is read back equal, and what a file contained before
stays.
"""

import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from praatio.textgrid import openTextgrid
from pympi.Elan import Eaf

from wenet_hs.annotation import eaf_writing
from wenet_hs.annotation.eaf import read_eaf, read_elan, read_segments
from wenet_hs.annotation.eaf_writing import write_eaf
from wenet_hs.annotation.recordings import (
    check_tier_names,
    ctm_lines,
    find_media,
    tsv_lines,
    write_srt,
)
from wenet_hs.annotation.textgrid import read_textgrid, write_textgrid
from wenet_hs.annotation.tiers import (
    Tier,
    TimedText,
    TranscribedRecording,
    TranscribedSegment,
    make_tiers,
    place_segments,
)
from wenet_hs.tree.errors import DataError

pytestmark = pytest.mark.filterwarnings(
    "ignore:Parsing unknown version of ELAN spec"
)  # 2.3 and 2.6


def word(text: str, start: float, end: float, confidence: float = 0.9) -> TimedText:
    return TimedText(text=text, start=start, end=end, confidence=confidence)


def segment(start: float, words: list[TimedText], speaker: str | None = None) -> TranscribedSegment:
    return TranscribedSegment(
        start=start,
        end=words[-1].end + 0.2,
        text=" ".join(word.text for word in words),
        words=tuple(words),
        confidence=0.75,
        speaker=speaker,
    )


def recording(
    media: Path, *segments: TranscribedSegment, duration_s: float = 60.0
) -> TranscribedRecording:
    chosen = segments or (
        segment(0.5, [word("ŋa", 0.6225, 0.9), word('"<b>&"', 0.9, 1.5, 0.2)]),
        segment(2.0, [word("dù", 2.1, 2.4)]),
        TranscribedSegment(start=4.0, end=5.0, text=""),
    )
    media.touch()
    return TranscribedRecording(
        media=media, duration_s=duration_s, segments=place_segments(chosen, duration_s)
    )


def save_textgrid(path: Path, of: TranscribedRecording, source: Path | None = None) -> None:
    write_textgrid(path, make_tiers(of, "wenet_hs", 0.5), of.duration_s, source)


EXPECTED = {
    "wenet_hs": [(500, 1700, 'ŋa "<b>&"'), (2000, 2600, "dù"), (4000, 5000, "")],
    "wenet_hs words": [(623, 900, "ŋa"), (900, 1500, '"<b>&"'), (2100, 2400, "dù")],
}
CONFIDENCE = [(500, 1700, "0.75"), (2000, 2600, "0.75")]


def of_tier(eaf: Eaf, name: str) -> list[tuple[int, int, str]]:
    """Begin, end and value of each annotation."""
    return [tuple(one[:3]) for one in eaf.get_annotation_data_for_tier(name)]


def check_structure(path: Path) -> None:
    """What ELAN needs: slots in the order of time, different identifiers, the order and the types
    of its schema.
    """
    document = read_eaf(path)
    slots = document.findall("TIME_ORDER/TIME_SLOT")
    times_ms = [int(slot.get("TIME_VALUE")) for slot in slots if slot.get("TIME_VALUE")]
    assert times_ms == sorted(times_ms)

    slot_ids = values_of(document, "TIME_SLOT_ID")
    assert slot_ids
    assert len(slot_ids) == len(set(slot_ids))
    annotation_ids = values_of(document, "ANNOTATION_ID")
    assert annotation_ids
    assert len(annotation_ids) == len(set(annotation_ids))

    places_in_schema = [eaf_writing._EAF_ORDER[element.tag] for element in document]
    assert places_in_schema == sorted(places_in_schema)

    types = {type_.get("LINGUISTIC_TYPE_ID"): type_ for type_ in document.iter("LINGUISTIC_TYPE")}
    stereotypes = values_of(document, "STEREOTYPE")
    for tier in document.findall("TIER"):
        constraint = types[tier.get("LINGUISTIC_TYPE_REF")].get("CONSTRAINTS")
        assert (constraint is None) == (tier.get("PARENT_REF") is None)
        assert constraint is None or constraint in stereotypes

    properties = document.findall("HEADER/PROPERTY[@NAME='lastUsedAnnotationId']")
    highest_number = max(int(annotation_id[1:]) for annotation_id in annotation_ids)
    assert [property_.text for property_ in properties] == [str(highest_number)]


def values_of(document: ElementTree.Element, attribute: str) -> list[str]:
    """The values of an attribute, of all elements that have it."""
    values = [element.get(attribute) for element in document.iter()]
    return [value for value in values if value]


def test_elan(tmp_path: Path) -> None:
    path = tmp_path / "elan" / "talk.eaf"
    write_eaf(path, recording(tmp_path / "talk one.wav"), "wenet_hs", 0.5)
    check_structure(path)
    eaf = Eaf(str(path))
    assert {name: of_tier(eaf, name) for name in EXPECTED} == EXPECTED
    assert of_tier(eaf, "wenet_hs confidence") == CONFIDENCE
    assert of_tier(eaf, "wenet_hs low confidence") == [(900, 1500, "0.20")]
    constraints = {name: one.get("CONSTRAINTS") for name, one in eaf.linguistic_types.items()}
    assert constraints == {
        "wenet_hs": None,
        "wenet_hs words": "Included_In",
        "wenet_hs confidence": "Symbolic_Association",
        "wenet_hs low confidence": "Included_In",
    }
    (media,) = eaf.media_descriptors
    links = {
        "MEDIA_URL": f"file://{tmp_path}/talk one.wav",
        "RELATIVE_MEDIA_URL": "../talk one.wav",
    }
    assert media == {"MIME_TYPE": "audio/x-wav", **links}
    assert find_media(Path(shutil.copy(path, tmp_path))) == tmp_path / "talk one.wav"


def test_participants_have_tiers_of_their_own(tmp_path: Path) -> None:
    both = [segment(1.0, [word("a", 1.1, 1.6)], "A"), segment(1.2, [word("b", 1.3, 1.9)], "B")]
    write_eaf(tmp_path / "two.eaf", recording(tmp_path / "two.wav", *both), "asr", 0.5)
    eaf = Eaf(str(tmp_path / "two.eaf"))
    assert eaf.get_parameters_for_tier("asr@A")["PARTICIPANT"] == "A"
    assert of_tier(eaf, "asr@A") == [(1000, 1800, "a")]
    assert eaf.get_parameters_for_tier("asr words@B")["PARTICIPANT"] == "B"
    assert of_tier(eaf, "asr words@B") == [(1300, 1900, "b")]
    assert [name for name in eaf.tiers if "low confidence" in name] == []


def test_a_recording_without_speech_has_an_empty_tier(tmp_path: Path) -> None:
    empty = TranscribedRecording(media=tmp_path / "two.wav", duration_s=3.0, segments=())

    write_eaf(tmp_path / "empty.eaf", empty, "asr", 0.5)

    assert list(Eaf(str(tmp_path / "empty.eaf")).tiers) == ["asr"]


def content_of(document: ElementTree.Element) -> list[bytes]:
    """All elements below the document that the user made, without indentation."""
    kept = list[bytes]()
    for element in document:
        name = element.get("TIER_ID") or element.tag
        if name in ("HEADER", "TIME_ORDER") or name.startswith("wenet_hs"):
            continue
        ElementTree.indent(element)
        element.tail = None
        kept.append(ElementTree.tostring(element))
    return kept


@pytest.mark.parametrize("name", ["example.eaf", "turkish.eaf"])
def test_existing_tiers_stay(tmp_path: Path, shared_dir: Path, name: str) -> None:
    source = shared_dir / "data" / "annotation" / name
    if not source.is_file():
        pytest.skip(f"{source} does not exist")
    path, media = tmp_path / "out" / name, tmp_path / "elan-example1.wav"
    copied = Path(shutil.copy(source, tmp_path))
    write_eaf(path, recording(media), "wenet_hs", 0.5, source=copied)
    check_structure(path)
    old, new = content_of(read_eaf(source)), content_of(read_eaf(path))
    assert [one for one in new if b"wenet_hs" not in one] == old
    before, after = Eaf(str(source)), Eaf(str(path))
    for tier in before.tiers:
        assert before.tiers[tier] == after.tiers[tier]
    assert {one: of_tier(after, one) for one in EXPECTED} == EXPECTED
    # A second model, with other names of tiers, in the copy of the copy.
    with pytest.raises(
        DataError, match=f"{name}: has a tier 'wenet_hs' already; choose another name with --tier"
    ):
        check_tier_names(path, "wenet_hs")
    check_tier_names(path, "other")
    write_eaf(tmp_path / "twice" / name, recording(media), "other", 0.5, source=path)
    check_structure(tmp_path / "twice" / name)
    assert of_tier(Eaf(str(tmp_path / "twice" / name)), "other words") == EXPECTED["wenet_hs words"]
    if (
        name == "example.eaf"
    ):  # the links of the copy point to the file that was found; the video stays
        urls = [
            one.get("RELATIVE_MEDIA_URL")
            for one in read_eaf(path).findall("HEADER/MEDIA_DESCRIPTOR")
        ]
        assert urls == [None, "../elan-example1.wav"]


LONG = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 60.01
tiers? <exists>
size = 2
item []:
    item [1]:
        class = "IntervalTier"
        name = "size = 7"
        xmin = 0
        xmax = 60.01
        intervals: size = 1
        intervals [1]:
            xmin = 0
            xmax = 60.01
            text = " say ""ŋ"" "
    item [2]:
        class = "TextTier"
        name = "points"
        xmin = 0
        xmax = 60.01
        points: size = 1
        points [1]:
            number = 1.5
            mark = "a ""b"" c"
"""
SHORT = (
    'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n60.01\n<exists>\n1\n"IntervalTier"\n"old"\n0\n60.01\n1\n'
    '0\n60.01\n" say ""ŋ"" "\n'
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    "text", [LONG, SHORT, LONG.replace("\n", "\r\n")], ids=["long", "short", "windows"]
)
def test_a_textgrid_keeps_its_tiers(tmp_path: Path, text: str, encoding: str) -> None:
    source, path = tmp_path / "a.TextGrid", tmp_path / "out" / "a.TextGrid"
    source.write_bytes(text.encode(encoding))
    save_textgrid(path, recording(tmp_path / "a.wav"), source)
    old = read_textgrid(source)
    assert [*read_textgrid(path).tiers][: len(old.tiers)] == old.tiers
    grid = openTextgrid(str(path), False, "error")
    assert grid.maxTimestamp == 60.01
    for name, spans in EXPECTED.items():
        entries = [
            (round(1000 * one.start), round(1000 * one.end), one.label)
            for one in grid.getTier(name)
        ]
        assert entries == [span for span in spans if span[2]]
    assert [one.label for one in grid.getTier("wenet_hs low confidence")] == ["0.20"]
    with pytest.raises(DataError, match=r"a.TextGrid: has a tier 'wenet_hs' already"):
        check_tier_names(path, "wenet_hs")


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        (
            '0\n2\n<exists>\n1\n"IntervalTier"\n"old"\n0\n2\n1\n0\n2\n"a"',
            [(0, 2, "a"), (2, 60, "")],
        ),
        ("0\n60\n<absent>", None),
        (
            '0\n60\n<exists>\n1\n"IntervalTier"\n"old"\n0\n60\n3\n-1\n1\n"a"\n1\n1\n"b"\n1\n60\n"c"',
            [(-1, 1, "a"), (1, 1, "b"), (1, 60, "c")],
        ),
    ],
    ids=["too short", "no tiers", "times that are no interval"],
)
def test_odd_textgrids(
    tmp_path: Path, old: str, expected: list[tuple[float, float, str]] | None
) -> None:
    source = tmp_path / "a.TextGrid"
    source.write_text(f'File type = "ooTextFile"\nObject class = "TextGrid"\n\n{old}\n')
    check_tier_names(source, "wenet_hs")
    save_textgrid(tmp_path / "b.TextGrid", recording(tmp_path / "a.wav"), source)
    grid = read_textgrid(tmp_path / "b.TextGrid")
    tiers = {tier.name: list(tier.spans) for tier in grid.tiers}
    assert tiers.pop("old", None) == expected
    assert grid.extent[1] == 60
    assert tiers["wenet_hs"][-1] == (2.6, 60.0, "")
    assert len(tiers) == 4


@pytest.mark.parametrize(("duration_s", "shift"), [(60.0, 0.0), (40.05, 20.0), (50.0, None)])
def test_a_textgrid_of_a_part_gets_new_tiers_in_its_own_times(
    tmp_path: Path, duration_s: float, shift: float | None
) -> None:
    source, path = tmp_path / "a.TextGrid", tmp_path / "b.TextGrid"
    tier = '1\n"IntervalTier"\n"old"\n20 ! from the whole recording\n60\n1\n30\n31\n"a"'
    source.write_text(
        f'File type = "ooTextFile"\nObject class = "TextGrid"\n\n20\n60\n<exists>\n{tier}\n'
    )
    found = recording(tmp_path / "a.wav", duration_s=duration_s)
    if shift is None:
        message = "a.TextGrid: times: begins at 20 s and its audio has 50.000 s; give the audio that has 60 s .* or 40 s"
        with pytest.raises(DataError, match=message):
            check_tier_names(source, "wenet_hs", duration_s)
        with pytest.raises(DataError, match=message):
            save_textgrid(path, found, source)
        return
    check_tier_names(source, "wenet_hs", duration_s)
    save_textgrid(path, found, source)
    grid = read_textgrid(path)
    tiers = {tier.name: [span for span in tier.spans if span[2]] for tier in grid.tiers}
    assert grid.extent == (shift, pytest.approx(max(60, duration_s + shift)))
    assert tiers["old"] == [(30, 31, "a")], "what the file contained stays as it was"
    assert tiers["wenet_hs"][1] == (pytest.approx(2.0 + shift), pytest.approx(2.6 + shift), "dù")
    openTextgrid(str(path), False, "error")


def test_a_new_textgrid_has_the_tiers_and_times_of_a_recording(tmp_path: Path) -> None:
    save_textgrid(tmp_path / "a.TextGrid", recording(tmp_path / "a b.wav"))

    grid = openTextgrid(str(tmp_path / "a.TextGrid"), False, "error")
    assert list(grid.tierNames) == [*EXPECTED, "wenet_hs confidence", "wenet_hs low confidence"]
    assert grid.minTimestamp == 0
    assert grid.maxTimestamp == 60


def test_subtitles_have_hours(tmp_path: Path) -> None:
    path = tmp_path / "a.srt"
    late = segment(3600.5, [word("end", 3601, 3602)])

    write_srt(path, recording(tmp_path / "late.wav", late, duration_s=4000))

    assert path.read_text("utf-8") == "1\n01:00:00,500 --> 01:00:02,200\nend\n\n"


def test_a_line_of_a_ctm_has_no_space_in_its_name(tmp_path: Path) -> None:
    first_word = recording(tmp_path / "a b.wav").words[:1]

    assert ctm_lines("a b", first_word) == "a▁b 1 0.6230 0.2770 ŋa 0.9000\n"


def test_a_table_has_the_path_times_text_and_confidence_of_a_segment(tmp_path: Path) -> None:
    transcribed = recording(tmp_path / "a b.wav")

    _, *rows = [line.split("\t") for line in tsv_lines(transcribed).splitlines()]

    assert rows == [
        [str(transcribed.media), "2.000", "2.600", "dù", "0.7500"],
        [str(transcribed.media), "4.000", "5.000", "", ""],
    ]


def test_a_table_keeps_joiners_and_writes_a_tab_as_a_backslash_and_t(tmp_path: Path) -> None:
    path = tmp_path / "گفت\u200cوگو.wav"
    transcribed = recording(path, segment(1, [word("می\u200cخواهم\tم", 1, 2)]))

    [row] = [line.split("\t") for line in tsv_lines(transcribed).splitlines()]

    assert row[0] == str(path)
    assert row[3] == "می\u200cخواهم\\tم"


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_times_are_in_order_inside_of_the_recording(seed: int) -> None:
    rng = np.random.default_rng(seed)
    segments = list[TranscribedSegment]()
    now = 0.0
    for _ in range(rng.integers(0, 6)):
        start = now = now + rng.choice([0.001, 1.0]) * rng.uniform(0.03, 1)
        words = []
        for length in rng.uniform(0.01, 0.3, rng.integers(0, 5)):
            words.append(word("a", now + length / 3, now + length))
            now += length
        now += 0.01
        segments.append(TranscribedSegment(start=start, end=now, text="a", words=tuple(words)))
    rest = rng.uniform(0, 0.3)
    placed = place_segments(segments[::-1], now + rest)

    flat = [0.0]
    for segment_ in placed:
        assert segment_.start < segment_.end
        flat.append(segment_.start)
        for word_ in segment_.words:
            assert word_.start < word_.end
            flat += [word_.start, word_.end]
        flat.append(segment_.end)

    assert len(placed) == len(segments)
    assert flat == sorted(flat)
    assert flat[-1] <= now + rest
    assert flat == [round(second, 3) for second in flat]


def test_overlaps_of_a_speaker_are_refused() -> None:
    overlapping = [segment(1.0, [word("a", 1.1, 1.6)]), segment(1.2, [word("b", 1.3, 1.9)])]

    with pytest.raises(
        DataError,
        match=r"two segments of one speaker overlap at 1.200 s, which a tier cannot hold; c",
    ):
        place_segments(overlapping, 9.0)


def test_a_segment_that_overlaps_the_one_before_by_30_ms_begins_at_its_end() -> None:
    first, second = place_segments(
        [segment(1.0, [word("a", 1.1, 1.6)]), segment(1.77, [word("b", 1.8, 1.9)])], 9.0
    )

    assert first.end == 1.8
    assert second.start == 1.8


def test_words_beyond_their_segment_are_clipped() -> None:
    words = (
        word("a", 0.5, 1.1),
        word("b", 1.2, 2.5),
        word("c", 2.1, 2.5),
        word("d", 2.2, 2.3),
    )

    [placed] = place_segments(
        [TranscribedSegment(start=1.0, end=2.0, text="a b c d", words=words)], 9.0
    )

    assert [(clipped.start, clipped.end) for clipped in placed.words] == [
        (1.0, 1.1),
        (1.2, 1.998),
        (1.998, 1.999),
        (1.999, 2.0),
    ]


@pytest.mark.parametrize("name", ["talk.wav", "deep/old.wav"])
def test_new_tiers_have_the_offset_of_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    link = f'MEDIA_URL="file:///D:/{Path(name).name}" MIME_TYPE="audio/x-wav" TIME_ORIGIN="1100"'
    head = f"<HEADER><MEDIA_DESCRIPTOR {link}/><?note x?></HEADER><!-- a comment -->"
    slots = '<TIME_ORDER><TIME_SLOT TIME_SLOT_ID="b"/><TIME_SLOT TIME_SLOT_ID="c" TIME_VALUE=""/></TIME_ORDER>'
    Path("talk.eaf").write_text(
        f'<ANNOTATION_DOCUMENT FORMAT="3.0">{head}{slots}</ANNOTATION_DOCUMENT>'
    )
    Path(name).parent.mkdir(exist_ok=True)
    found = recording(tmp_path / name)
    assert find_media(Path("talk.eaf")) == found.media
    write_eaf(Path("new.eaf"), found, "wenet_hs", 0.5, source=Path("talk.eaf"))
    check_structure(Path("new.eaf"))
    tiers = {
        tier.name: list(tier.spans) for tier in read_elan(Path("new.eaf")).tiers
    }  # in times of the recording
    assert tiers["wenet_hs"] == [(1.1, 1.7, 'ŋa "<b>&"'), (2.0, 2.6, "dù"), (4.0, 5.0, "")]
    assert tiers["wenet_hs words"] == [(1.1, 1.5, '"<b>&"'), (2.1, 2.4, "dù")]
    times = [
        slot.get("TIME_VALUE") for slot in read_eaf(Path("new.eaf")).findall("TIME_ORDER/TIME_SLOT")
    ]
    assert times[:3] == [None, "", "0"] and times[-1] == "3900"  # in times of ELAN
    [media] = read_eaf(Path("new.eaf")).findall("HEADER/MEDIA_DESCRIPTOR")
    assert (media.get("RELATIVE_MEDIA_URL"), media.get("TIME_ORIGIN")) == (f"./{name}", "1100")
    message = "new.eaf: 0 segments and 1 words before ELAN's time 0 (1100 ms of the recording) are left out"
    assert caplog.messages == [message]


def test_links_and_line_ends_of_a_copy(tmp_path: Path) -> None:
    links = "".join(
        f'<MEDIA_DESCRIPTOR RELATIVE_MEDIA_URL="{url}"/>' for url in ("../film/a.mp4", "./Talk.WAV")
    )
    links += '<LINKED_FILE_DESCRIPTOR RELATIVE_LINK_URL="./../film/a.mp4" ASSOCIATED_WITH="x"/>'
    value = "<ANNOTATION_VALUE>a&#13;&#10;b</ANNOTATION_VALUE>"
    head = f"<HEADER>{links}</HEADER><TIME_ORDER/><TIER TIER_ID='old'>{value}</TIER>"
    source, path = tmp_path / "field" / "talk.eaf", tmp_path / "deep" / "out" / "talk.eaf"
    for file in (tmp_path / "film/a.mp4", source):
        file.parent.mkdir()
        file.write_text(f'<ANNOTATION_DOCUMENT FORMAT="3.0">{head}</ANNOTATION_DOCUMENT>')
    found = recording(tmp_path / "field" / "talk.wav", segment(1, [word("a\bb", 1, 2)]))
    write_eaf(path, found, "wenet_hs", 0.5, source=source)
    document = read_eaf(path)
    urls = [one.get("RELATIVE_MEDIA_URL") for one in document.findall("HEADER/MEDIA_DESCRIPTOR")]
    assert urls == ["../../film/a.mp4", "../../field/talk.wav"]
    [linked] = document.findall("HEADER/LINKED_FILE_DESCRIPTOR")
    assert (
        linked.get("RELATIVE_LINK_URL") == "../../film/a.mp4" and "MEDIA_URL" not in linked.attrib
    )
    values = [one.text for one in document.iter("ANNOTATION_VALUE")]
    assert values[0] == "a\r\nb" and "ab" in values, "what XML cannot hold is left out"


def test_the_recording_of_a_file(tmp_path: Path) -> None:
    def eaf(*links: str) -> Path:
        media = "".join(f'<MEDIA_DESCRIPTOR MIME_TYPE="a" {link}/>' for link in links)
        text = f'<ANNOTATION_DOCUMENT FORMAT="3.0"><HEADER>{media}</HEADER><TIME_ORDER/></ANNOTATION_DOCUMENT>'
        (tmp_path / "talk.eaf").write_text(text)
        return tmp_path / "talk.eaf"

    path = eaf('MEDIA_URL="file:///C:/Data/film.mp4"', r'MEDIA_URL="file:///C:\Data\my%20talk.WAV"')
    message = r"talk.eaf: missing: no film.mp4, my%20talk.WAV, my talk.WAV, talk.wav \(.flac, .mp3 …\) in .* and its subf"
    with pytest.raises(DataError, match=message):
        find_media(path)
    (tmp_path / "talk.flac").touch()
    assert find_media(path) == tmp_path / "talk.flac"
    (tmp_path / "My talk.wav").touch()
    assert find_media(path) == tmp_path / "My talk.wav"
    (tmp_path / "deep").mkdir()
    for name in ("far.wav", "deep/far.wav"):
        (tmp_path / name).touch()
    for url in ("file:///C:/far.wav", "https://x.org/far.wav"):
        assert find_media(eaf(f'MEDIA_URL="{url}"')) == tmp_path / "far.wav"
    (tmp_path / "other").mkdir()
    (tmp_path / "other/far.wav").touch()
    both = eaf(f'MEDIA_URL="{tmp_path}/other/far.wav" RELATIVE_MEDIA_URL="./old/far.wav"')
    assert find_media(both) == tmp_path / "other/far.wav", (
        "a link that exists comes before a search by name"
    )
    (tmp_path / "talk.part1.wav").touch()
    assert find_media(eaf('MEDIA_URL="talk.part1"')) == tmp_path / "talk.part1.wav"
    (tmp_path / "talk.TextGrid").write_text(SHORT, "utf-8")
    assert find_media(tmp_path / "talk.TextGrid") == tmp_path / "talk.flac"
    assert find_media(tmp_path / "other.wav") == tmp_path / "other.wav"


def test_a_medium_with_another_offset_does_not_replace_the_recording(tmp_path: Path) -> None:
    links = '<MEDIA_DESCRIPTOR MIME_TYPE="audio/x-wav" RELATIVE_MEDIA_URL="./rec.wav" TIME_ORIGIN="700"/>'
    links += '<MEDIA_DESCRIPTOR MIME_TYPE="video/mp4" RELATIVE_MEDIA_URL="./rec.mp4"/>'
    path = tmp_path / "rec.eaf"
    path.write_text(
        f'<ANNOTATION_DOCUMENT FORMAT="3.0"><HEADER>{links}</HEADER><TIME_ORDER/></ANNOTATION_DOCUMENT>'
    )
    (tmp_path / "rec.mp4").touch()
    message = r"rec.eaf: missing: rec.mp4 is linked with another offset; restore the recording that is linked first"
    with pytest.raises(DataError, match=message):
        find_media(path)
    assert read_elan(path).other_media == ("./rec.mp4",)
    (tmp_path / "rec.wav").touch()
    assert find_media(path) == tmp_path / "rec.wav"


def test_a_whole_is_divided_before_its_parts_whatever_the_order_of_tiers(tmp_path: Path) -> None:
    words = eaf_tier("words", ["s0 s2", "s2 s4"])
    phones = eaf_tier("phones", ["s0 s1", "s1 s2", "s2 s3", "s3 s4"], parent="words")
    slots = """
        <TIME_SLOT TIME_SLOT_ID="s0" TIME_VALUE="0"/>
        <TIME_SLOT TIME_SLOT_ID="s1"/>
        <TIME_SLOT TIME_SLOT_ID="s2"/>
        <TIME_SLOT TIME_SLOT_ID="s3"/>
        <TIME_SLOT TIME_SLOT_ID="s4" TIME_VALUE="12000"/>"""
    head = f'<ANNOTATION_DOCUMENT FORMAT="3.0"><HEADER/><TIME_ORDER>{slots}</TIME_ORDER>'
    path = tmp_path / "a.eaf"

    for tiers in (words + phones, phones + words):
        path.write_text(f"{head}{tiers}</ANNOTATION_DOCUMENT>")
        times = {tier.name: times_of(tier) for tier in read_elan(path).tiers}
        assert times["words"] == [(0.0, 6.0), (6.0, 12.0)], tiers
        assert times["phones"] == [(0.0, 3.0), (3.0, 6.0), (6.0, 9.0), (9.0, 12.0)], tiers


def eaf_tier(name: str, slots: list[str], parent: str | None = None) -> str:
    """A tier with one annotation from each slot to another, such as `s0 s2`."""
    annotations = ""
    for number, slots_of_annotation in enumerate(slots):
        first, last = slots_of_annotation.split()
        annotations += f"""
            <ANNOTATION>
              <ALIGNABLE_ANNOTATION ANNOTATION_ID="{name}{number}"
                  TIME_SLOT_REF1="{first}" TIME_SLOT_REF2="{last}">
                <ANNOTATION_VALUE>x</ANNOTATION_VALUE>
              </ALIGNABLE_ANNOTATION>
            </ANNOTATION>"""
    of_parent = f' PARENT_REF="{parent}"' if parent else ""
    return f'<TIER TIER_ID="{name}" LINGUISTIC_TYPE_REF="t"{of_parent}>{annotations}</TIER>'


def times_of(tier: Tier) -> list[tuple[float, float]]:
    return [(start, end) for start, end, _ in tier.spans]


WRONG = [
    ("a.eaf", b"no XML", r"a.eaf: not XML \(syntax error.*\); open it in ELAN and save it again"),
    ("a.eaf", b"<html/>", "a.eaf: not an ELAN file \\(<html>\\); open it in ELAN"),
    (
        "a.eaf",
        b'<ANNOTATION_DOCUMENT FORMAT="4.0"><HEADER/><TIME_ORDER/></ANNOTATION_DOCUMENT>',
        "a.eaf: EAF format 4.0; only 2 and 3 can be read, save it as EAF 3.0 in ELAN",
    ),
    (
        "a.TextGrid",
        SHORT.encode("latin-1", "replace") + b"\xe9",
        "a.TextGrid: neither UTF-8 nor UTF-16; save it again",
    ),
    (
        "a.TextGrid",
        b"ooBinaryFile\x08TextGrid",
        "a.TextGrid: a binary file of Praat; save it as text file in Praat",
    ),
]


@pytest.mark.parametrize(("name", "data", "message"), WRONG)
def test_wrong_files(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        check_tier_names(tmp_path / name, "wenet_hs")
    with pytest.raises(
        DataError, match=f"gone{Path(name).suffix}: cannot be read .*; check the path"
    ):
        check_tier_names(tmp_path / f"gone{Path(name).suffix}", "wenet_hs")


LINK = '<MEDIA_DESCRIPTOR MIME_TYPE="{}" MEDIA_URL="file:///D:/{}"{}/>'
DEAD_LINKS = [
    ([("audio/x-wav", "old.wav", "")], [("audio/x-wav", "./talk.wav")]),
    ([("audio/mpeg", "talk.mp3", "")], [("audio/x-wav", "./talk.wav")]),
    ([("video/mp4", "talk.mp4", "")], [("audio/x-wav", "./talk.wav"), ("video/mp4", None)]),
    (
        [("video/mp4", "a.mp4", ""), ("audio/x-wav", "a.wav", "")],
        [("video/mp4", None), ("audio/x-wav", "./talk.wav")],
    ),
    (
        [("audio/x-wav", "talk.wav", ""), ("audio/x-wav", "b.wav", "")],
        [("audio/x-wav", "./talk.wav"), ("audio/x-wav", None)],
    ),
    ([("audio/x-wav", "a.wav", ' TIME_ORIGIN="9"')], [("audio/x-wav", "./talk.wav")]),
    ([], [("audio/x-wav", "./talk.wav")]),
]


@pytest.mark.parametrize(("links", "expected"), DEAD_LINKS)
def test_a_dead_link_to_audio_is_replaced_and_not_doubled(
    tmp_path: Path, links: list[tuple[str, str, str]], expected: list[tuple[str, str | None]]
) -> None:
    header = "".join(LINK.format(*link) for link in links)
    source = tmp_path / "talk.eaf"
    source.write_text(
        f'<ANNOTATION_DOCUMENT FORMAT="3.0"><HEADER>{header}</HEADER><TIME_ORDER/>'
        "</ANNOTATION_DOCUMENT>"
    )
    path = tmp_path / "new.eaf"

    write_eaf(path, recording(tmp_path / "talk.wav"), "wenet_hs", 0.5, source=source)

    media = read_eaf(path).findall("HEADER/MEDIA_DESCRIPTOR")
    new_links = [(link.get("MIME_TYPE"), link.get("RELATIVE_MEDIA_URL")) for link in media]
    assert new_links == expected
    if "TIME_ORIGIN" in header:
        assert [link.get("TIME_ORIGIN") for link in media] == ["9"]


def write_segmented(path: Path, texts: list[str], *participants: str) -> None:
    """An ELAN file with a tier `utt` of these texts, at the times of `recording`, and a tier of
    each participant.
    """
    eaf = Eaf()
    eaf.remove_tier("default")
    eaf.add_linguistic_type("below", "Time_Subdivision")
    for name in participants:
        eaf.add_tier(f"top@{name}", part=name)
        eaf.add_annotation(f"top@{name}", 0, 9000, "")
    eaf.add_tier("utt", *(("below", f"top@{participants[0]}") if participants else ()))
    for (begin, end, _), text in zip(EXPECTED["wenet_hs"], texts, strict=True):
        eaf.add_annotation("utt", begin, end, text)
    eaf.to_file(str(path))


def test_a_tier_is_filled_where_it_has_no_text(tmp_path: Path) -> None:
    source, path = tmp_path / "talk.eaf", tmp_path / "out" / "talk.eaf"
    write_segmented(source, ["", "by hand", " "], "Ana", "Beto")
    assert read_segments(source, "utt") == [(0.5, 1.7), (2.0, 2.6), (4.0, 5.0)]
    found = recording(tmp_path / "talk.wav")
    assert write_eaf(path, found, "wenet_hs", 0.5, source=source, into_tier="utt") == 1
    check_structure(path)
    eaf = Eaf(str(path))
    texts = [text for *_, text in sorted(of_tier(eaf, "utt"))]
    assert texts == ['ŋa "<b>&"', "by hand", " "], (
        "a person's text stays; the last segment has no text"
    )
    assert of_tier(eaf, "wenet_hs") == EXPECTED["wenet_hs"]
    parts = {name: eaf.get_parameters_for_tier(name).get("PARTICIPANT") for name in eaf.tiers}
    assert parts["wenet_hs"] == parts["wenet_hs words"] == "Ana", (
        "of the tier that the segments depend on"
    )
    for tier, message in {
        "gone": "talk.eaf: no tier 'gone'; there are: top@Ana, top@Beto, utt",
        "empty": "talk.eaf: tier 'empty' has no annotations; segment the recording in ELAN first",
        "ref": "talk.eaf: tier 'ref' has annotations without times; name the tier that it depends on",
    }.items():
        eaf = Eaf(str(source))
        eaf.add_linguistic_type("linked", "Symbolic_Association", timealignable=False)
        if tier != "gone":
            eaf.add_tier(tier, *(("linked", "utt") if tier == "ref" else ()))
        if tier == "ref":
            eaf.add_ref_annotation("ref", "utt", 600, "x")
        (tmp_path / tier).mkdir()
        eaf.to_file(str(tmp_path / tier / "talk.eaf"))
        with pytest.raises(DataError, match=message):
            read_segments(tmp_path / tier / "talk.eaf", tier)


@pytest.mark.parametrize(
    ("participants", "expected"), [(["Ana"], "Ana"), (["Ana", "Beto"], None), ([], None)]
)
def test_new_tiers_have_the_only_participant_of_the_file(
    tmp_path: Path, participants: list[str], expected: str | None
) -> None:
    write_segmented(tmp_path / "talk.eaf", ["a", "b", "c"], *participants)
    assert (
        write_eaf(
            tmp_path / "n.eaf",
            recording(tmp_path / "talk.wav"),
            "x",
            0.5,
            source=tmp_path / "talk.eaf",
        )
        == 0
    )
    eaf = Eaf(str(tmp_path / "n.eaf"))
    assert eaf.get_parameters_for_tier("x words").get("PARTICIPANT") == expected
    assert [text for *_, text in sorted(of_tier(eaf, "utt"))] == ["a", "b", "c"]


@pytest.mark.parametrize("character", ["\x1b", "\x00", "\x0b", "\ufffe", "\udc80"], ids=ascii)
def test_what_xml_cannot_contain_is_left_out_and_stated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, character: str
) -> None:
    """In texts, words, names of speakers, of tiers and of files; `\\udc80` is a byte of a name that
    is not UTF-8.
    """
    media = tmp_path / f"a{character if character != chr(0) else ''}b.wav"
    spoken = segment(
        1.0, [word(f"m{character}o", 1.0, 1.5, confidence=0.2)], speaker=f"An{character}a"
    )
    write_eaf(tmp_path / "a.eaf", recording(media, spoken), f"text{character}", 0.5)
    [text, words, *_] = read_elan(tmp_path / "a.eaf").tiers
    assert (text.name, text.participant, text.spans[0][2]) == ("text", "Ana", "mo")
    assert (words.name, words.spans) == ("text words", [(1.0, 1.5, "mo")])
    [line] = caplog.messages
    expected = "a.eaf: control characters, which ELAN cannot read, are left out of its texts: "
    assert expected + f"U+{ord(character):04X} (" in line
    if character != "\udc80":  # the finder uses no names that are not UTF-8
        media.write_bytes(b"")
        assert find_media(tmp_path / "a.eaf") == media, "the link has the character as %1B"


def test_a_file_with_a_control_character_is_refused_with_its_place(tmp_path: Path) -> None:
    """ELAN cannot open it either."""
    path = tmp_path / "a.eaf"
    write_eaf(
        path, recording(tmp_path / "a.wav", segment(1.0, [word("mo", 1.0, 1.5)])), "text", 0.5
    )
    good = path.read_text("utf-8")
    number = next(n for n, line in enumerate(good.split("\n"), start=1) if ">mo<" in line)
    for written, code in {"\x1b": "001B", "&#27;": "001B", "&#x8;": "0008"}.items():
        path.write_text(good.replace(">mo<", f">m{written}o<"), "utf-8")
        message = (
            rf"a.eaf: line {number} has U\+{code}, a control character that XML cannot contain; "
            "remove it in a text"
        )
        with pytest.raises(DataError, match=message):
            read_elan(path)
        path.write_text(path.read_text("utf-8").replace(written, ""), "utf-8")
        assert [tier.spans[0][2] for tier in read_elan(path).tiers][:2] == ["mo", "mo"]
