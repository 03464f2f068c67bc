# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs compute-cer` and `compute-wer`: WeNet's command line and layout, right numbers."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from wenet_hs.bin import compute_cer, compute_wer
from wenet_hs.bin.main import run_command

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Runs the tool in a folder with ref and hyp: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    Path("ref").write_text("клю_é été\nb groß\nc tʃ a\n", "utf-8")

    def run(
        options: str = "", hyp: str = "клю_é ete\nb gross\n", tool: ModuleType = compute_cer
    ) -> tuple[int, str, str]:
        Path("hyp").write_text(hyp, "utf-8")
        try:
            code = run_command(tool, [*options.split(), "ref", "hyp"])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        return code, *capsys.readouterr()

    return run


def test_letters_of_every_script_with_keys_whole_and_missing_counted(call: Call) -> None:
    code, out, err = call("--char=1 --v=1")
    assert code == 0
    assert "\nutt: клю_é\nWER: 66.67 % N=3 C=1 S=2 D=0 I=0\nlab: é t é\nrec: e t e\n" in out
    assert "\nOverall -> 70.00 % N=10 C=4 S=3 D=3 I=1\n" in out
    assert err == "hyp: 1 of 3 missing\n"


def test_a_unit_of_several_characters_on_one_side_only_changes_no_other_unit(call: Call) -> None:
    Path("ref").write_text("a abc\nb pa\n", "utf-8")
    out = call("--char=1 --v=1", hyp="a abcd\u0303\nb p\u0254\u0303a\n")[1]
    assert "\nOverall -> 40.00 % N=5 C=5 S=0 D=0 I=2\n" in out
    assert "\nEnglish -> 40.00 % N=5 C=5 S=0 D=0 I=2\n" in out


def test_every_switch_of_wenets(call: Call) -> None:
    Path("ig").write_text("-\nS\n", "utf-8")
    Path("split").write_text("Tʃ t ʃ\nlonely\n", "utf-8")
    Path("cluster").write_text("<VOWEL> É e a\n</VOWEL> <NONE> </NONE>", "utf-8")
    switches = "--cs=0 --v=2 --ig=ig --splitfile=split --cluster=cluster --rt=1 --maxw=2 --padding-symbol=underline"
    code, out, err = call(switches, hyp="клю_é ete\nb gross\nzz x\n")
    assert code == 0
    assert "\nlab(клю_é): é t\nrec(клю_é): e t\n\nlab(клю_é): é\nrec(клю_é): e\n\n" in out
    assert "utt: b\nWER: 25.00 % N=4 C=3 S=0 D=1 I=0\n" in out  # ß is no s, and stays
    assert "\nutt: c\nWER: 100.00 % N=3 C=0 S=0 D=3 I=0\n" in out
    assert "\nVOWEL -> 100.00 % N=3 C=0 S=2 D=1 I=0\nNONE -> 0.00 % N=0 C=0 S=0 D=0 I=0\n" in out
    assert err == "hyp: 1 of 3 missing\nhyp: 1 hypothesis without reference left out: zz\n"


def test_switches_mean_what_they_mean_to_wenet(call: Call) -> None:
    spelled = "--char=true --cs=TRUE --rt=2 --v=3 --padding-symbol=Underline"
    assert call(spelled) == call("--char=1 --cs=1 --rt=1 --v=2 --padding-symbol=underline")
    assert call("--v=true") == call("--v=1")
    assert call("--v=0")[1] == "Overall -> 70.00 % N=10 C=4 S=3 D=3 I=1\n\n"
    assert call("--char=0 --v=0")[1] == "Overall -> 100.00 % N=4 C=0 S=2 D=2 I=0\n\n"


def test_compute_wer_counts_words_unless_it_is_told_otherwise(call: Call) -> None:
    assert call("--v=0", tool=compute_wer) == call("--char=0 --v=0")
    assert call("--v=0 --char=1", tool=compute_wer) == call("--v=0")


@pytest.mark.parametrize(
    ("option", "hyp", "message"),
    [
        ("--cluster=open", "b g\n", "open: cluster <A> has no end; write </A>\n"),
        ("--cluster=bare", "b g\n", "bare:2: a is in no cluster; write <NAME> units </NAME>\n"),
        ("--maxw=0", "b g\n", "--maxw 0: must be at least 1\n"),
        ("", "z x\n", "hyp: no utterance of ref (b, and 2 more) among its 1 hypothesis (z)"),
        (
            "--case=1",
            "b g\n",
            "wenet-hs compute-cer: unrecognized arguments: --case=1 (try --help)\n",
        ),
        (
            "--padding-symbol=tab",
            "b g\n",
            "wenet-hs compute-cer: argument --padding-symbol: invalid choice",
        ),
    ],
)
def test_faults(call: Call, option: str, hyp: str, message: str) -> None:
    Path("open").write_text("<A> a b", "utf-8")
    Path("bare").write_text("\na", "utf-8")
    code, out, err = call(option, hyp)
    assert (code, out, err[: len(message)]) == (2, "", message)
