# SPDX-License-Identifier: Apache-2.0
"""Known forms of text files: what each is recognised by, in any encoding, and which other texts are
none of them.
"""

from pathlib import Path

import pytest
from form_examples import EXAMPLES

from wenet_hs.manifest.file_forms import (
    FORMS,
    check_form,
    find_form,
    find_form_of_file,
    refuse_known_forms,
)
from wenet_hs.tree.errors import DataError

VARIANTS = {
    "a transcript of CLAN (CHAT)": [("a.txt", "*SPA:\tmo lu . \x15250_3500\x15\n%mor:\tn|mo\n")],
    "a file of Toolbox": [("a.tbt", "\\_sh v3.0  400  Text\n\\tx mo")],
    "a CTM of NIST": [
        ("x.txt", "rec A 0.25 0.31 mo\n"),
        ("x.txt", "rec\t1\t0.25\t0.31\tmo\n"),
        ("rec.txt", "rec 1 0 1 mo\nrec 1 1 1 lu\n"),  # whole seconds: the lines name the file
    ],
    "an STM of NIST": [
        ("x.txt", "rec A spk 0.25 3.50 <o,f0,male> mo lu\n"),
        ("x.ctm", "rec 1 spk 0 1 mo lu\nrec 1 spk 1 2 ke ba\n"),
    ],
    "a TextGrid of Praat": [("a.txt", 'File type = "ooTextFile short"\n"TextGrid"\n\n0\n')],
    "a list of audio files, such as wav.scp of Kaldi": [("w.txt", "a1 raw_wav.1.ark:25\n")],
    "a table of the segments of one recording": [
        ("a.csv", 'start,end,speaker,text\n0,350,ana," mo"\n'),
        ("a.csv", "Bonjour !,0.14,0.94\n"),
    ],
    "JSON with a list of segments per recording, as of Whisper, GigaSpeech or WenetSpeech": [
        (
            "a.json",
            '{"audios": [{"path": "a.opus", "segments": [{"begin_time": 1.0, "end_time": 2.0}]}]}',
        ),
        ("a.json", '{"segments": [{"start": 0.1}], "word_segments": [{"word": "mo"}]}'),
        (
            "a.json",
            '{"systeminfo": "", "transcription": [{"timestamps": {"from": "00:00:00,000"}}]}',
        ),
    ],
}
NONE = (
    *[
        "mo lu ke ba",
        "mo\nlu\n",
        "<laugh> mo",
        "[laughs] mo",
        "@ home",
        "$ 5 please",
        "1 2 3 4",
        "(a) mo\n(b) lu",
        "",
    ],
    *[
        "room 1 has 3 4 people",
        "room 1 has 3 4 people\nroom 1 has 5 6 people",
        "Speaker one: mo",
        "# mo\n# lu",
    ],
    *[
        "path,text\na.wav,mo",
        "path\tstart\tend\ttext\na.wav\t0\t4\tmo",
        "a.wav mo lu",
        "a.wav|mo lu|",
        "start mo end",
    ],
    *[
        "\\textbf{mo} lu",
        "mo, 0.5, 0.9",
        "key 1\nstart 2",
        "{mo} lu",
        "{laughs}{2} mo",
        "[10] mo",
        "100\tmo",
    ],
    *["[[laughs]] mo", "0001\t42\n0002\t1984", "<tt> mo", "a  1 2"],
)


def test_every_form_has_an_example() -> None:
    assert [form.name for form in FORMS if form.name not in EXAMPLES] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_form_is_recognised_in_any_encoding(name: str, tmp_path: Path) -> None:
    for file_name, text in [EXAMPLES[name], *VARIANTS.get(name, [])]:
        path = tmp_path / file_name
        found = find_form(path, text)
        assert found is not None and found.name == name
        accented = f"{text}\n\\tx été" if "Toolbox" in name else text
        for encoding in ("utf-8-sig", "latin-1", "utf-16", "utf-16-le", "utf-16-be"):
            path.write_bytes(accented.replace("\n", "\r\n").encode(encoding))
            assert find_form_of_file(path) is found, encoding


@pytest.mark.parametrize("text", NONE)
def test_other_texts_have_no_known_form(text: str) -> None:
    assert find_form(Path("a.txt"), text) is None


def test_only_the_beginning_of_a_long_file_counts(tmp_path: Path) -> None:
    lines = "".join(f"utt{number:06} audio/{number:06}.wav\n" for number in range(20_000))
    (tmp_path / "w.txt").write_text(lines)
    for content in (lines, lines.encode()):
        form = find_form(tmp_path / "w.txt", content)
        assert form is not None and "wav.scp" in form.name, "the last line that is seen is not cut"
    assert find_form(tmp_path / "w.txt", f"{lines}mo lu\n") is form


def test_the_command_that_reads_a_form_gets_it_and_others_one_line(tmp_path: Path) -> None:
    name, text = EXAMPLES["SBV subtitles"]
    form = check_form(tmp_path / name, text, "prepare folder")
    assert form is not None and form.name == "SBV subtitles"
    with pytest.raises(DataError) as caught:
        check_form(tmp_path / name, text, "prepare table")
    remedy = "put it beside its recording, with the same name, and use `wenet-hs prepare folder --text_suffix .sbv`"
    assert str(caught.value) == f"{tmp_path / name}: SBV subtitles; {remedy}"
    assert check_form(tmp_path / "a.txt", "mo lu", "prepare table") is None


def test_a_file_that_cannot_be_read_has_no_form(tmp_path: Path) -> None:
    assert find_form_of_file(tmp_path / "none") is None
    assert find_form_of_file(tmp_path) is None
    refuse_known_forms(tmp_path / "none", tmp_path)


def test_many_comments_before_a_root_take_linear_time() -> None:
    comments = "<!-- page -->\n" * 1000 + "<?style a?>\n" * 1000
    elan = find_form(Path("a.txt"), f'{comments}<ANNOTATION_DOCUMENT DATE="">')
    assert elan is not None and elan.name == "a file of ELAN"
    other = find_form(Path("a.txt"), f"{comments}mo lu")
    assert other is not None and other.name == "XML or HTML"
