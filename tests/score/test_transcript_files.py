# SPDX-License-Identifier: Apache-2.0
"""Files of transcripts to score: trn, ctm and stm of NIST are told from `key transcript` lines."""

import gzip
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from command_line import Capsys, error_line, run_line

from wenet_hs.bin import compare as compare_command
from wenet_hs.bin import compute_cer as cer_command
from wenet_hs.bin import score as score_command
from wenet_hs.manifest.data_list import write_text
from wenet_hs.score.transcript_files import read_transcripts
from wenet_hs.tree.errors import DataError

Caplog = pytest.LogCaptureFixture

TRN = """hello big world	(spk1-utt1)
another one here (spk1-utt2)
;; a comment

who is there (spk2-utt1)
(spk2-utt2)
"""
TEXTS = {
    "spk1-utt1": "hello big world",
    "spk1-utt2": "another one here",
    "spk2-utt1": "who is there",
    "spk2-utt2": "",
}
CTM = """;; a comment
rec1 1 1.18 0.02 world 0.9
rec1 1 0.10 0.08 hello 0.8 lex speaker

rec2 1 0.5 0.25 good NA
rec2 1 .75 0.3 day
"""
STM = """rec1 1 anna 1 2.5 <o,f0,female> world
rec1 1 bert 0.1 1.05 <O> hello
rec2 A anna 0.1 1.0 <o> good day
"""
OF_RECORDINGS = {"rec1": "hello world", "rec2": "good day"}


def read(tmp_path: Path, content: str) -> dict[str, str]:
    path = tmp_path / "file.txt"
    path.write_text(content, "utf-8")
    return read_transcripts(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (TRN, TEXTS),
        ("hello big world (spk1-utt1)\n", {"spk1-utt1": "hello big world"}),
        ("hello again (0001)\nhello (0002)\n", {"0001": "hello again", "0002": "hello"}),
        ("so (um) yes (a_1)\nso (uh) (a_2)\n", {"a_1": "so (um) yes", "a_2": "so (uh)"}),
        ("1 2 (s-1)\n1 (s-2)\n1 3 (s-3)\n", {"s-1": "1 2", "s-2": "1", "s-3": "1 3"}),
        (CTM, OF_RECORDINGS),
        ("rec 1 0 1 hello\nrec 1 1 1 world\n", {"rec": "hello world"}),
        ("utt1 1 0.10 0.08 hello\n", {"utt1": "hello"}),
        (STM, OF_RECORDINGS),
        ("rec A s 0.0 1.0\nrec A s 1.0 2.0 <unk> yes\n", {"rec": "<unk> yes"}),
        (
            "u1 1 a 0.0 1.0 <o,f0,male> moro ngai\nu2 1 b 0.0 1.0 ke\nu3 1 b 0.0 1.0 <O> <unk>\n",
            {"u1": "moro ngai", "u2": "ke", "u3": "<unk>"},
        ),
        ("rec A s 0.0 1.0 <F0> yes\nrec A s 1.0 2.0 no\n", {"rec": "yes no"}),
        ("rec 1 s 1 2 world\nrec 1 s 0 1 hello\n", {"rec": "hello world"}),
    ],
)
def test_forms_of_nist_are_read(tmp_path: Path, content: str, expected: dict[str, str]) -> None:
    assert read(tmp_path, content) == expected


@pytest.mark.parametrize(
    "content",
    [
        "utt1 hello (laughs)\nutt2 so (coughs)\n",
        "utt1 perro (dog)\nutt2 gato (cat)\n",
        "utt1 so (0.7)\nutt2 yes (1,2)\n",
        "utt1 one (a-1)\nutt2 two\nutt3 three\n",
        "utt1 one (a-1)\nutt2 two (a-1)\n",
        "anna hello (laughs)\nbert yes (coughs)\n",
        "utt1 1 2 3 four\nutt2 1 7 9 5\n",
        "utt1 3 5 2.5 1\nutt2 about 1.5 2.5 metres\n",
        "utt1 (x)\n",
        ";; hello\nutt1 x\n",
        "(a) hello\n(b) world\n",
    ],
)
def test_lines_that_begin_with_their_key_stay_so(tmp_path: Path, content: str) -> None:
    expected = dict[str, str]()
    for line in content.splitlines():
        key, _, transcript = line.partition(" ")
        expected[key] = transcript

    assert read(tmp_path, content) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "hello big (s-1)\nhello there\nhello again (s-3)\n",
            "2: no key in brackets at the end, which other lines of this trn have; add it",
        ),
        (
            "hello (s-1)\nworld (s-1)\n",
            "2: 's-1' occurs twice in this trn; keep one of the two lines",
        ),
        (
            "i { um / uh / @ } see (s-1)\n",
            "1: alternatives of sclite, '{ um / uh / @ }', which are not scored; write one of them",
        ),
        (
            "utt-1 hello (s-1)\nutt-2 hello (s-2)\n",
            "1: both 'utt-1' and 's-1' can be the key, here and on all other lines; "
            "write `key transcript` lines that do not end with a name in brackets",
        ),
        (
            "utt1 so (laughs)\nutt1 yes (coughs)\n",
            "2: 'utt1' occurs twice; keep one of the two lines",
        ),
        (
            "hello you (anna)\nhello me (bert)\n",
            "2: begins with 'hello' as an earlier line, and all end with brackets; "
            "write `key transcript` lines; "
            "if the brackets have the keys, as in a trn of NIST, write these first",
        ),
        (
            "rec 1 0.1 0.2 so\nrec 1 0.3 0.2\nrec 1 0.5 0.2 yes\n",
            "2: 'rec 1 0.3 0.2' does not have the form of other lines, a ctm of NIST "
            "(recording channel start duration word); correct or remove it",
        ),
        (
            "rec 1 s 0.1 0.2 so\nrec 1 s 2 1.0\nrec 1 s 2 3.0 no\n",
            "2: 'rec 1 s 2 1.0' does not have the form of other lines, an stm of NIST "
            "(recording channel speaker start end text); correct or remove it",
        ),
        (
            "rec 1 s 0.1 1.0 a { b / c } d\n",
            "1: alternatives of sclite, '{ b / c }', which are not scored; write one of them",
        ),
        (
            "rec 1 s 0.1 1.0 <o> yes\nrec 1 gap 1.0 2.0 <o> ignore_time_segment_in_scoring\n",
            "2: a time that is not scored, in an stm of NIST: sclite leaves out what is said; "
            "remove the line and, from the hypotheses, the words of this time; "
            "or write `key transcript` lines",
        ),
        (
            "rec 1 anna 0.0 2.0 yes\nrec 1 bert 1.5 3.0 no\n",
            "2: begins before the segment of FILE:1 ends: the words have no order; "
            "write `key transcript` lines, one per segment, in both files",
        ),
        (
            "rec A 0.1 0.2 so\nrec A 0.3 0.2 yes\nrec B 0.3 0.2 no\n",
            "3: channel B of rec, FILE:1 has another channel; put the channel into the name, "
            "in both files: awk '{ $1 = $1 \"-\" $2; print }' FILE",
        ),
    ],
)
def test_what_cannot_be_scored_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, content)

    error = str(caught.value).replace(str(tmp_path / "file.txt"), "FILE")
    assert error == f"FILE:{message}"


@pytest.mark.parametrize(
    ("repaired", "expected"),
    [
        ("hello big (s-1)\nhello there (s-2)\n", {"s-1": "hello big", "s-2": "hello there"}),
        ("i um see (s-1)\n", {"s-1": "i um see"}),
        ("anna hello you\nbert hello me\n", {"anna": "hello you", "bert": "hello me"}),
        ("rec 1 0.1 0.2 so\nrec 1 0.3 0.2 uh\n", {"rec": "so uh"}),
        ("rec 1 s 0.1 1.0 a b d\n", {"rec": "a b d"}),
        ("rec 1 s 0.1 1.0 <o> yes\nrec 1 s 2.0 3.0 <o> no\n", {"rec": "yes no"}),
        ("rec-1 yes\nrec-2 no\n", {"rec-1": "yes", "rec-2": "no"}),
    ],
)
def test_a_file_that_is_repaired_as_the_error_says_is_read(
    tmp_path: Path, repaired: str, expected: dict[str, str]
) -> None:
    assert read(tmp_path, repaired) == expected


def output_of(command: str) -> str:
    """What a command of an error message prints."""
    finished = subprocess.run(command, shell=True, check=True, capture_output=True, text=True)
    return finished.stdout


def test_the_command_of_a_line_puts_channels_into_names(tmp_path: Path) -> None:
    path = tmp_path / "file.ctm"
    path.write_text("rec A 0.1 0.2 so\nrec A 0.3 0.2 yes\nrec B 0.3 0.2 no\n")
    with pytest.raises(DataError) as caught:
        read_transcripts(path)
    _, _, command = caught.value.to_do.partition(": ")

    path.write_text(output_of(command.replace("FILE", str(path))))

    assert read_transcripts(path) == {"rec-A": "so yes", "rec-B": "no"}


def test_a_trn_of_many_lines_is_checked_to_its_end(tmp_path: Path) -> None:
    trn = "".join(f"word {number} (s-{number})\n" for number in range(500))
    assert read(tmp_path, trn)["s-499"] == "word 499"

    with pytest.raises(DataError, match=r"txt:501: no key in brackets at the end"):
        read(tmp_path, f"{trn}another word\n")


def test_text_of_many_lines_may_end_with_a_line_in_brackets(tmp_path: Path) -> None:
    text = "".join(f"utt{number} word {number}\n" for number in range(500))
    assert read(tmp_path, f"{text}utt500 so (s-1)\n")["utt500"] == "so (s-1)"


# ---- commands


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_tmp_path")
def test_a_trn_has_the_numbers_of_its_sentences(capsys: Capsys, caplog: Caplog) -> None:
    """Also beside `key transcript` lines; the names in the brackets are no words."""
    caplog.set_level("INFO")
    ref = {"s1-u1": "hello big world", "s1-u2": "another one here", "s2-u1": "who is there"}
    hyp = {"s1-u1": "hello bag world", "s1-u2": "another one here", "s2-u1": "who was here"}
    for name, texts in (("ref", ref), ("hyp", hyp)):
        trn = "".join(f"{text}\t({key})\n" for key, text in texts.items())
        Path(f"{name}.trn").write_text(trn)
        write_text(f"{name}.txt", texts)
    printed = set[str]()
    for reference, hypotheses in (("txt", "txt"), ("trn", "trn"), ("trn", "txt"), ("txt", "trn")):
        files = f"--ref ref.{reference} --hyp hyp.{hypotheses}"
        assert run_line(score_command, f"--metric cer {files} --num_resamples 0") == 0
        printed.add(capsys.readouterr().out)
    assert len(printed) == 1 and "10.81" in printed.pop()
    assert caplog.text.count("ref.trn: a trn of NIST") == 2
    line = "--metric wer --ref ref.trn --hyp_a hyp.trn --hyp_b hyp.txt --num_resamples 10"
    assert run_line(compare_command, line) == 0
    assert "0.00" in capsys.readouterr().out
    assert run_line(cer_command, "--v=0 ref.trn hyp.trn") == 0
    assert "Overall -> 10.81 % N=37" in capsys.readouterr().out


@pytest.mark.usefixtures("in_tmp_path")
def test_other_keys_in_a_trn_are_named(capsys: Capsys) -> None:
    Path("ref.trn").write_text("hello (s1-u1)\nworld (s1-u2)\n")
    Path("hyp.txt").write_text("u1 hello\nu2 world\n")
    code = run_line(score_command, "--metric cer --ref ref.trn --hyp hyp.txt")
    assert error_line(code, capsys) == (
        "hyp.txt: no utterance of ref.trn (s1-u1, and 1 more) among its 2 hypotheses (u1, u2); "
        "score it against its own reference, or write the same keys in both"
    )
    Path("hyp.txt").write_text("s1-u1 hello\ns1-u2 world\n")
    assert run_line(score_command, "--metric cer --ref ref.trn --hyp hyp.txt") == 0


@pytest.mark.usefixtures("in_tmp_path")
def test_an_stm_and_a_ctm_are_scored_by_recording(capsys: Capsys) -> None:
    Path("ref.stm").write_text(STM)
    Path("hyp.ctm").write_text(CTM.replace("day", "night"))
    line = "--metric wer --ref ref.stm --hyp hyp.ctm --num_resamples 0"
    assert run_line(score_command, line) == 0
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert last[:8] == ["micro", "average", "2", "4", "1", "0", "0", "25.00"]


# ---- the name of a file, and whole seconds

STM_WHOLE = "u1 1 ana 0 2 moro ngai\nu2 1 ana 0 1 ke luba\n"
CTM_WHOLE = "u1 1 0 1 moro\nu2 1 0 1 ke\n"
STM_TEXTS = {"u1": "moro ngai", "u2": "ke luba"}
CTM_TEXTS = {"u1": "moro", "u2": "ke"}


def read_named(path: Path, content: str) -> dict[str, str]:
    path.write_text(content, "utf-8")
    return read_transcripts(path)


@pytest.mark.parametrize("name", ["x.stm", "x.STM", "x.txt", "text"])
@pytest.mark.parametrize(
    "content",
    [
        STM_WHOLE,
        STM_WHOLE.replace("0 2", "0 2.00"),
        STM_WHOLE.replace("0 2", "0.00 2.00"),
        STM_WHOLE.replace(" 1 ana", " A ana"),
    ],
)
def test_an_stm_may_have_whole_seconds(tmp_path: Path, name: str, content: str) -> None:
    assert read_named(tmp_path / name, content) == STM_TEXTS


@pytest.mark.parametrize("name", ["x.ctm", "x.txt", "text"])
@pytest.mark.parametrize(
    "content",
    [
        CTM_WHOLE,
        CTM_WHOLE.replace("0 1 moro", "0 1.5 moro"),
        CTM_WHOLE.replace("moro", "moro 0.9").replace("ke", "ke NA"),
    ],
)
def test_a_ctm_may_have_whole_seconds(tmp_path: Path, name: str, content: str) -> None:
    assert read_named(tmp_path / name, content) == CTM_TEXTS


STM_OR_TEXT = "u1 1 7 2 3 4\nu2 2 8 4 5 6\n"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.ctm", "u1 1 2 3 4\nu2 1 4 5 6\n", {"u1": "4", "u2": "6"}),
        ("x.stm", STM_OR_TEXT, {"u1": "4", "u2": "6"}),
        ("x.trn", "hello there (anna)\nyes (bob)\n", {"anna": "hello there", "bob": "yes"}),
        (
            "x.trn",
            "utt-1 hello (s-1)\nutt-2 hello (s-2)\n",
            {"s-1": "utt-1 hello", "s-2": "utt-2 hello"},
        ),
    ],
)
def test_a_name_of_nist_decides_where_lines_could_be_text(
    tmp_path: Path, name: str, content: str, expected: dict[str, str]
) -> None:
    assert read_named(tmp_path / name, content) == expected


def test_a_name_of_nist_decides_also_before_the_suffix_of_gzip(tmp_path: Path) -> None:
    path = tmp_path / "x.stm.gz"
    with gzip.open(path, "wt") as file:
        file.write(STM_OR_TEXT)

    assert read_transcripts(path) == {"u1": "4", "u2": "6"}


@pytest.mark.parametrize(
    ("suffix", "columns"),
    [
        ("trn", "a trn of NIST (transcript, and the key in brackets)"),
        ("ctm", "a ctm of NIST (recording channel start duration word)"),
        ("stm", "an stm of NIST (recording channel speaker start end text)"),
    ],
)
def test_text_under_a_name_of_nist_is_refused(tmp_path: Path, suffix: str, columns: str) -> None:
    path = tmp_path / f"x.{suffix}"

    with pytest.raises(DataError) as caught:
        read_named(path, "u1 moro ngai\nu2 ke luba\n")

    assert str(caught.value) == (
        f"{path}:1: 'u1 moro ngai' does not have the form of its suffix, {columns}; "
        "if the lines are `key transcript`, let its name end in .txt; otherwise correct them"
    )
    renamed = path.rename(path.with_suffix(".txt"))
    assert read_transcripts(renamed) == STM_TEXTS


@pytest.mark.usefixtures("in_tmp_path")
def test_an_stm_of_whole_seconds_has_the_rate_of_its_words(capsys: Capsys) -> None:
    Path("ref.stm").write_text(STM_WHOLE)
    Path("hyp.txt").write_text("u1 moro ngai\nu2 ke luba\n")
    assert run_line(score_command, "--metric wer --ref ref.stm --hyp hyp.txt") == 0
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert last[:8] == ["micro", "average", "2", "4", "0", "0", "0", "0.00"]


COMMANDS_OF_TWO_FILES = [
    (score_command, "--metric wer --num_resamples 0 --ref {ref} --hyp {hyp}"),
    (compare_command, "--metric wer --num_resamples 9 --ref {ref} --hyp_a {hyp} --hyp_b {hyp}"),
    (cer_command, "--v=0 {ref} {hyp}"),
]


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize(("command", "line"), COMMANDS_OF_TWO_FILES)
@pytest.mark.parametrize("names", [("anna", "bob"), ("anna a", "anna b")])
def test_keys_of_letters_in_brackets_are_refused_in_text_and_read_in_a_trn(
    capsys: Capsys, command: ModuleType, line: str, names: tuple[str, str]
) -> None:
    first, second = names
    Path("ref.txt").write_text(f"hello there ({first})\nyes ({second})\n")
    Path("hyp.txt").write_text(f"yellow there ({first})\nyes ({second})\n")
    code = run_line(command, line.format(ref="ref.txt", hyp="hyp.txt"))
    assert error_line(code, capsys) == (
        "ref.txt, hyp.txt: all lines of both files end with names in brackets, the same ones, "
        f"such as ({first}); if these names are the keys, let the names of both files end in .trn; "
        "if the first words are the keys, write a digit into each of them, in both files"
    )
    Path("ref.txt").rename("ref.trn")
    Path("hyp.txt").rename("hyp.trn")
    assert read_transcripts("hyp.trn") == {first: "yellow there", second: "yes"}
    assert run_line(command, line.format(ref="ref.trn", hyp="hyp.trn")) == 0


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize(
    ("ref", "hyp"),
    [
        ("anna1 hello (laughs)\nbob1 yes (coughs)\n", "anna1 hello (laughs)\nbob1 yes (coughs)\n"),
        ("anna hello (laughs)\nbob yes (coughs)\n", "anna hello\nbob yes\n"),
        ("anna hello (laughs)\nbob yes (laughs)\n", "anna hello (laughs)\nbob yes (laughs)\n"),
    ],
)
def test_words_in_brackets_are_scored(capsys: Capsys, ref: str, hyp: str) -> None:
    Path("ref.txt").write_text(ref)
    Path("hyp.txt").write_text(hyp)
    line = "--metric wer --num_resamples 0 --ref ref.txt --hyp hyp.txt"

    assert run_line(score_command, line) == 0

    averages = capsys.readouterr().out.splitlines()[-1].split()
    num_reference_words = averages[3]
    assert num_reference_words == "4"


ALTERNATIVES_OF_CTM = """u1 1 0 1 moro
u1 1 * * <ALT_BEGIN>
u1 1 1 1 ngai
u1 1 * * <ALT>
u1 1 1 1 nga
u1 1 1.5 1 i
u1 1 * * <ALT_END>
u1 1 3 1 ke
"""


@pytest.mark.parametrize("num_words", [0, 300])
def test_alternatives_of_a_ctm_are_named_with_a_command(tmp_path: Path, num_words: int) -> None:
    path = tmp_path / "x.ctm"
    words = "".join(f"u0 1 {number} 1 word\n" for number in range(num_words))

    with pytest.raises(DataError) as caught:
        read_named(path, words + ALTERNATIVES_OF_CTM)

    to_do = caught.value.to_do
    assert str(caught.value).removesuffix(to_do) == (
        f"{path}:{num_words + 2}: alternatives of sclite, <ALT_BEGIN>, which are not scored; "
    )
    assert to_do.startswith("keep one of them, without the lines <ALT_BEGIN>, <ALT> and <ALT_END>;")
    _, _, command = to_do.partition("the first ones by: ")
    first_ones = output_of(command.replace("FILE", str(path)))
    assert read_named(path, first_ones)["u1"] == "moro ngai ke"


def test_many_braces_and_slashes_are_text(tmp_path: Path) -> None:
    """The search for alternatives took a minute for such a line."""
    text = "{ a / " * 5000
    assert read(tmp_path, f"{text}(s-1)\n") == {"s-1": text.strip()}


# ---- other files

USE_PRAAT = "use `wenet-hs prepare praat`, for which its name ends in .TextGrid"


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.srt",
            "1\n00:00:00,250 --> 00:00:03,500\nmo\n",
            "SRT subtitles; put it beside its recording, with the same name, and use "
            "`wenet-hs prepare folder --text_suffix .srt`",
        ),
        (
            "a.TextGrid",
            'File type = "ooTextFile"\nObject class = "TextGrid"\n\nxmin = 0\nxmax = 1\n',
            f"a TextGrid of Praat; {USE_PRAAT}",
        ),
        (
            "a.json",
            '{"text": "mo", "segments": [{"start": 0.25, "end": 3.5, "text": "mo"}]}\n',
            "JSON with a list of segments per recording, as of Whisper, GigaSpeech or WenetSpeech; "
            "write one object per segment, with path, text, start and end, and "
            "use `wenet-hs prepare table`",
        ),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_files_of_annotations_get_the_line_of_other_commands(
    capsys: Capsys, name: str, content: str, message: str, encoding: str
) -> None:
    Path(name).write_text(content, encoding)
    Path("other.txt").write_text("u1 mo\n")
    for command, line in COMMANDS_OF_TWO_FILES:
        code = run_line(command, line.format(ref="other.txt", hyp=name))
        assert error_line(code, capsys) == f"{name}: {message}"
    if name != "a.json":  # as a reference it is read as a data.list
        code = run_line(score_command, f"--metric wer --ref {name} --hyp other.txt")
        assert error_line(code, capsys) == f"{name}: {message}"


@pytest.mark.parametrize("header", ["key\ttext", "utt_id transcript", "File\tSentence"])
def test_names_of_columns_are_no_utterance(tmp_path: Path, header: str) -> None:
    path = tmp_path / "x.tsv"
    with pytest.raises(DataError) as caught:
        read_named(path, f"{header}\nu1\tmo\n")
    columns = " and ".join(header.split())
    assert str(caught.value) == (
        f"{path}:1: names of columns, {columns}, not a key and its transcript; remove this line"
    )
    assert read_named(path, "u1\tmo\n") == {"u1": "mo"}
    assert read_named(path, "key text of an utterance\n") == {"key": "text of an utterance"}


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize(
    ("encoding", "name", "position"), [("cp1252", "WINDOWS-1252", 4), ("utf-16", "UTF-16", 0)]
)
@pytest.mark.parametrize("flag", ["ref", "hyp"])
def test_another_encoding_gets_the_command_that_converts_it(
    capsys: Capsys, encoding: str, name: str, position: int, flag: str
) -> None:
    Path("a file.txt").write_text("u1 más\nu2 no\n", encoding)
    Path("u.txt").write_text("u1 más\nu2 no\n", "utf-8")
    in_utf_8 = {"ref": "u.txt", "hyp": "u.txt"}
    line = "--metric wer --ref {ref} --hyp {hyp} --num_resamples 0"

    code = run_line(score_command, line.format(**in_utf_8 | {flag: "'a file.txt'"}))

    command = f"iconv -f {name} -t UTF-8 'a file.txt' > NEW"
    assert error_line(code, capsys) == (
        f"a file.txt:1: not UTF-8 at byte {position}; "
        f"convert it from {name}, or the encoding in which it was saved: {command}"
    )
    output_of(command)
    assert run_line(score_command, line.format(**in_utf_8 | {flag: "NEW"})) == 0
    averages = capsys.readouterr().out.splitlines()[-1].split()
    error_rate = averages[7]
    assert error_rate == "0.00"
