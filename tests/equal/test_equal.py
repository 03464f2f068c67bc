# SPDX-License-Identifier: Apache-2.0
"""The comparison of records: normalisation, differences, reasons. `run.py` runs the cases."""

from dataclasses import dataclass
from pathlib import Path

import case_recorder
import pytest
import torch
from case_recorder import PRINTED, CaseRecorder
from commands import CommandResult
from comparing import compare_records
from differences import compare_case, describe_change
from file_texts import text_of_file
from normalisation import ERROR_LINES, RULES, Rule, is_ignored_file, normalise
from reasons import REASONS, read_reasons
from recording import choose_cases
from records import HEADER, Header, current_header, write_header

Capsys = pytest.CaptureFixture[str]
HASH = "0123456789abcdef" * 4
PRINTED_FILE = "step/printed.txt"
METRICS = "step/files/m/metrics.jsonl"
RTF = """{
  "audio_seconds": 5.6,
  "seconds": {
    "encoder": 0.003
  },
  "modes": {
    "joint": {
      "rtf": 1.5e-03
    }
  },
  "beam_size": 5
}
"""


@dataclass(frozen=True)
class Example:
    """A text of a file, and what a rule makes of it."""

    file: str
    before: str
    after: str


EXAMPLES = {
    "time of a log line": Example(PRINTED_FILE, "19:26:36 INFO x\n", "INFO x\n"),
    "time of a start or an end in a run record": Example(
        "s/run.json",
        '"time": "2026-11-28T09:00:00Z"',
        '"time": "TIME"',
    ),
    "speed and memory in a run record": Example(
        "s/run.json",
        '"seconds_left": null, "speed": 45.6e3, "free_bytes": 7',
        '"seconds_left": NUMBER, "speed": NUMBER, "free_bytes": NUMBER',
    ),
    "size of an ONNX file": Example(PRINTED_FILE, "model.onnx 0.3 MB", "model.onnx SIZE MB"),
    "commit of a training": Example(
        "s/table/x.json", '{"commit":"1a2b3c4"}', '{"commit":"COMMIT"}'
    ),
    "process of a lock": Example("s/.lock", "process 12 on vm", "process PID on HOST"),
    "modification time in a cache": Example(
        "s/.checked_clips.jsonl",
        '["full 480044 1795894601509678439 a.wav", 1.5]',
        '["full 480044 MODIFIED_NS a.wav", 1.5]',
    ),
    "modification time of a shard": Example(
        "s/shards.json",
        '"71680 1795895732139517996"',
        '"71680 MODIFIED_NS"',
    ),
    "speed in a log line of a training": Example(
        PRINTED_FILE, "| grad 3.44 | 1,150 audio s/s | wait 28 %", "| grad 3.44 | SPEED"
    ),
    "speed of a language model or of word vectors": Example(
        PRINTED_FILE, "| grad 0.4 | 5,848 units/s | wait 6 %", "| grad 0.4 | SPEED units/s"
    ),
    "time of a training in a log line": Example(
        PRINTED_FILE, "errors 3.7 % | 4 s of training", "errors 3.7 % | TIME of training"
    ),
    "time that is left": Example(PRINTED_FILE, "| 0.1 min left", "| TIME left"),
    "time to the first batch": Example(
        PRINTED_FILE,
        "first batch after 0.3 s: ",
        "first batch after TIME: ",
    ),
    "free space": Example(PRINTED_FILE, "each), free 49.44 GB", "each), free SPACE"),
    "real-time factor of a decoding": Example(PRINTED_FILE, "RTF 0.0014", "RTF SPEED"),
    "temporary file of features": Example(
        PRINTED_FILE,
        f"/tmp/wenet_hs-features-vm-{HASH[:32]}-0.bin",
        "TEMPORARY/wenet_hs-features-0.bin",
    ),
    "file of encoder outputs": Example(
        PRINTED_FILE,
        f"outputs/{HASH[:16]}-{HASH[:32]}.bin",
        "outputs/CACHE.bin",
    ),
    "time in metrics.jsonl and state.json": Example(
        METRICS, '"seconds": 0.02, "audio_seconds": 4.2', '"seconds": TIME, "audio_seconds": 4.2'
    ),
    "time in the run record of a packed model": Example(
        "s/packed.zip", '{\n  "seconds": 0.82,', '{\n  "seconds": TIME,'
    ),
    "memory in metrics.jsonl": Example(
        METRICS,
        '"peak_memory_mb": 524.1',
        '"peak_memory_mb": MEMORY',
    ),
    "size of metrics.jsonl": Example("s/state.json", '"metrics_bytes": 3', '"metrics_bytes": SIZE'),
    "hash of state.json": Example(
        "s/manifest.json",
        f'"state.json": {{\n   "sha256": "{HASH}",\n   "bytes": 1520',
        '"state.json": {\n   "sha256": HASH,\n   "bytes": SIZE',
    ),
    "time in rtf.json": Example(
        "s/rtf.json",
        RTF,
        RTF.replace("0.003", "TIME").replace("1.5e-03", "TIME"),
    ),
    "time in a partial result": Example(
        "s/partial/batches-0.jsonl",
        '"score": -1.5, "seconds": {"ctc": 0.1}',
        '"score": -1.5, "seconds": {"ctc": TIME}',
    ),
    "begin of a partial result": Example(
        "s/partial/batches-0.jsonl", '"started_at": 1795895823.59', '"started_at": TIME'
    ),
    "date of an ELAN file": Example("s/a.eaf", 'DATE="2026-11-28T19:57"', 'DATE="DATE"'),
    "date of a page": Example("s/a.html", "2026-11-28 19:57 UTC", "DATE"),
    "temporary folder of a test": Example(
        ERROR_LINES, "CASE_FOLDER/t/popen-gw0/test_x0/a.txt: wrong", "TEST_FOLDER/a.txt: wrong"
    ),
    "folder of the environment": Example(
        ERROR_LINES,
        "/home/x/.venv/lib/python3.11/site-packages/a/b.so: already loaded",
        "SITE_PACKAGES/a/b.so: already loaded",
    ),
    "port that is in use": Example(
        ERROR_LINES,
        "--port 51069: cannot be used (Address already in use)",
        "--port PORT: cannot be used (Address already in use)",
    ),
    "temporary file that is being written": Example(
        ERROR_LINES, "x/.a.wav.5ca220f1.tmp: not", "x/.a.wav.RANDOM.tmp: not"
    ),
    "temporary folder that is being written": Example(
        ERROR_LINES, "x/.import.asirf6td/final.pt", "x/.import.RANDOM/final.pt"
    ),
    "size of a video that a test writes": Example(
        ERROR_LINES,
        "audio of 6511 bytes: no sound: a video",
        "audio of SIZE bytes: no sound: a video",
    ),
    "version of wenet_hs": Example(PRINTED_FILE, "wenet_hs 0.1.0 ·", "wenet_hs VERSION ·"),
}
"""Name of a rule → an example."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_changes_its_example(rule: Rule) -> None:
    example = EXAMPLES[rule.name]
    assert normalise(example.file, example.before, Path("/folder")) == example.after
    assert normalise(example.file, example.after, Path("/folder")) == example.after


def test_each_rule_has_its_own_example_and_a_reason() -> None:
    assert sorted(EXAMPLES) == sorted(rule.name for rule in RULES)
    assert all(rule.reason for rule in RULES)


def test_results_stay_as_they_are() -> None:
    texts = (
        '{"key": "a", "duration": 1.5, "score": -15.98, "times": [[0.02, 0.14]]}\n',
        "INFO step 1 of 8 | loss 2.717 (att 1.713 ctc 5.061) | lr 1.25e-03 | grad 3.44\n",
        "head.output.weight: float32 [9, 16] sha256 0123456789abcdef sum 1.5\n",
    )
    for text in texts:
        for file in (PRINTED_FILE, METRICS, "step/files/hyps.jsonl"):
            assert normalise(file, text, Path("/folder")) == text


def test_the_folder_of_a_case_is_replaced_and_event_files_are_ignored() -> None:
    assert normalise("a", "/folder/a.wav: x", Path("/folder")) == "CASE_FOLDER/a.wav: x"
    assert is_ignored_file("m/events.out.tfevents.17.vm")
    assert not is_ignored_file("m/metrics.jsonl")


def describe(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """All differences of a case, one line per line that differs."""
    lines = []
    for difference in compare_case("case", before, now):
        lines += [describe_change(difference, change) for change in difference.changes]
    return lines


def test_a_difference_names_case_file_line_and_column() -> None:
    lines = describe({"s/a": "one\ntwo\nthree\n"}, {"s/a": "one\ntwa\nthree\n"})
    assert lines == ["case: s/a:2: column 3: before 'two', now 'twa'"]
    lines = describe({"s/a": "one\ntwo\n"}, {"s/a": "one\nmore\ntwo\n"})
    assert lines == ["case: s/a:2: new: more"]
    assert describe({"s/a": "one\ntwo\n"}, {"s/a": "two\n"}) == ["case: s/a:1: vanished: one"]
    assert describe({"s/a": "one\n"}, {}) == ["case: s/a: vanished: the file"]
    assert describe({}, {"s/a": "one\n"}) == ["case: s/a: new: the file"]
    assert describe({"s/a": "one\n"}, {"s/a": "one\n"}) == []


def test_a_long_line_is_shown_around_its_first_difference() -> None:
    (line,) = describe({"a": "x" * 500 + "1" + "y" * 500}, {"a": "x" * 500 + "2" + "y" * 500})
    assert f"column 501: before '…{'x' * 30}1yyy" in line
    assert len(line) < 400


def test_lines_of_a_set_have_no_order() -> None:
    assert describe({"a.set.txt": "one\ntwo\n"}, {"a.set.txt": "two\none\n"}) == []
    lines = describe({"a.set.txt": "one\ntwo\n"}, {"a.set.txt": "three\ntwo\n"})
    assert lines == ["case: a.set.txt: vanished: one", "case: a.set.txt: new: three"]


# ---- records and reasons


def write_record(folder: Path, files: dict[str, str], processor: str = "P") -> Path:
    """A record of the case `c`."""
    for name, text in files.items():
        path = folder / "c" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    write_header(folder, Header(processor, "3.11", {"torch": "2"}, ["c"]))
    return folder


def write_reasons(folder: Path, text: str) -> Path:
    path = folder / "reasons.yaml"
    path.write_text(text, "utf-8")
    return path


@pytest.fixture
def records(tmp_path: Path) -> tuple[Path, Path]:
    """Two records with three lines that differ in two files."""
    before = write_record(tmp_path / "a", {"s/p": "beam 10\nx\nloss 1\n", "t/p": "one\n"})
    now = write_record(tmp_path / "b", {"s/p": "beam 12\nx\nloss 2\n", "t/p": "two\n"})
    return before, now


def test_differences_without_a_reason_fail(
    records: tuple[Path, Path], tmp_path: Path, capsys: Capsys
) -> None:
    none = write_reasons(tmp_path, "[]")
    assert compare_records(*records, ["c"], none) == 1
    assert capsys.readouterr().out.splitlines() == [
        "c: s/p:1: column 7: before 'beam 10', now 'beam 12'; 1 more line(s) differ",
        "c: t/p:1: column 1: before 'one', now 'two'",
        "1 cases compared; differences without a reason: 2",
    ]
    assert compare_records(records[0], records[0], ["c"], none) == 0


def test_a_reason_explains_the_lines_that_it_fits(
    records: tuple[Path, Path],
    tmp_path: Path,
    capsys: Capsys,
) -> None:
    beam = "- {case: c, file: s/*, line: ^beam, reason: a larger beam}\n"
    assert compare_records(*records, ["c"], write_reasons(tmp_path, beam)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "c: s/p:3: column 6: before 'loss 1', now 'loss 2'"
    assert lines[2] == "on purpose: a larger beam (c: s/p: 1 line(s))"
    everything = f"{beam}- {{case: '*', reason: all is new}}\n- {{case: c, file: x, reason: old}}\n"
    everything += "- {case: other, reason: of a case that did not run}\n"
    assert compare_records(*records, ["c"], write_reasons(tmp_path, everything)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "on purpose: a larger beam (c: s/p: 1 line(s))",
        "on purpose: all is new (c: s/p: 1 line(s))",
        "on purpose: all is new (c: t/p: 1 line(s))",
    ]
    assert lines[3] == "warning: unused entry of reasons.yaml: case c, file x: old"
    assert len(lines) == 5


def test_a_reason_for_new_lines_does_not_explain_others(tmp_path: Path, capsys: Capsys) -> None:
    before = write_record(tmp_path / "a", {"s/p": "one\n"})
    now = write_record(tmp_path / "b", {"s/p": "one\ntwo\n"})
    reasons = write_reasons(tmp_path, "- {case: c, change: new, reason: a new line}\n")
    assert compare_records(before, now, ["c"], reasons) == 0
    assert compare_records(now, before, ["c"], reasons) == 1
    assert "c: s/p:2: vanished: two" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("case: c\n", "must be a list of entries"),
        (
            "- {case: c, reason: x, lines: y}\n",
            "the keys of an entry are case, change, file, line, reason",
        ),
        ("- {case: c}\n", "entry 1: has no reason"),
        ("- {case: c, reason: x, line: '('}\n", "entry 1: line is no regular expression"),
        ("- {case: c, reason: x, change: old}\n", "entry 1: change must be new or vanished"),
    ],
)
def test_wrong_entries_of_reasons(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(SystemExit, match=expected):
        read_reasons(write_reasons(tmp_path, text))


def test_the_reasons_of_this_checkout_can_be_read() -> None:
    assert all(reason.reason for reason in read_reasons(REASONS))


def test_a_record_of_another_processor_is_refused(tmp_path: Path) -> None:
    before = write_record(tmp_path / "a", {"s": "x\n"})
    now = write_record(tmp_path / "b", {"s": "x\n"}, processor="Q")
    expected = "recorded on P, and this processor is Q: .*record the earlier commit again"
    with pytest.raises(SystemExit, match=expected):
        compare_records(before, now, ["c"])
    with pytest.raises(SystemExit, match=rf"{HEADER}: missing; make the record with"):
        compare_records(tmp_path / "none", now, ["c"])
    assert current_header(["c"]).processor


def test_other_versions_are_named(records: tuple[Path, Path], capsys: Capsys) -> None:
    write_header(records[1], Header("P", "3.12", {"torch": "3"}, ["c"]))
    compare_records(*records, ["c"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("results may differ: Python 3.11 before, 3.12 now")
    assert lines[1].endswith("results may differ: torch 2 before, 3 now")


def test_cases_are_chosen_by_name() -> None:
    everything = choose_cases([], [])
    assert choose_cases(["trees", "units"], []) == ["units", "trees"]
    assert choose_cases([], ["errors"]) == [name for name in everything if name != "errors"]
    with pytest.raises(SystemExit, match="no case tress; there are: exports "):
        choose_cases(["tress"], [])


# ---- files and steps


def test_files_become_text(tmp_path: Path) -> None:
    path = tmp_path / "final.pt"
    weights = {"a": torch.ones(2, 3), "b": {"c": torch.ones(1, dtype=torch.bfloat16), "step": 4}}
    torch.save(weights, path)
    lines = text_of_file(path).splitlines()
    assert [line.partition(" sha256")[0] for line in lines] == [
        "a: float32 [2, 3]",
        "b.c: bfloat16 [1]",
        "b.step: 4",
    ]
    weights["a"] = torch.nextafter(torch.ones(2, 3), torch.tensor(2.0))
    torch.save(weights, path)
    changed = text_of_file(path).splitlines()
    assert changed[0] != lines[0]
    assert changed[1:] == lines[1:]
    (tmp_path / "a.html").write_text(f"<img src='{'QUJD' * 200}'>\n")
    assert text_of_file(tmp_path / "a.html").startswith("<img src='<base64, sha256 ")
    (tmp_path / "a.wav").write_bytes(b"\xff\xfe\x00")
    assert text_of_file(tmp_path / "a.wav").startswith("3 bytes, sha256 ")


def test_a_step_records_output_and_written_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    folder = tmp_path / "case"
    folder.mkdir()
    (folder / "old").write_text("x\n")
    (folder / "input").write_text("x\n")

    def run_command(arguments: list[str], *_: object) -> CommandResult:
        (folder / "old").unlink()
        (folder / "new").write_text(f"{folder}/a.wav\n")
        exit_code = 0 if arguments == ["units", "a b"] else 2
        return CommandResult(exit_code, "printed\n", "19:26:36 INFO x\n")

    monkeypatch.setattr(case_recorder, "run_command", run_command)
    case = CaseRecorder("c", folder, tmp_path / "record")
    case.run("first", "units 'a b'")
    text = (tmp_path / "record" / "first" / PRINTED).read_text("utf-8")
    assert text.splitlines() == [
        *("$ wenet-hs units 'a b'", "exit code 0", "==== stdout", "printed", ""),
        *("==== stderr", "INFO x", "", "==== files", "written: new", "removed: old"),
    ]
    assert (tmp_path / "record/first/files/new").read_text() == "CASE_FOLDER/a.wav\n"
    assert capsys.readouterr().err == ""
    (folder / "old").write_text("x\n")
    with pytest.raises(ValueError, match="is recorded twice"):
        case.run("first", "units 'a b'")
    (folder / "old").write_text("x\n")
    case.run("second", "tree")
    assert "case c, step second: exit code 2, expected 0: " in capsys.readouterr().err
    (folder / "old").write_text("x\n")
    with pytest.raises(RuntimeError, match="case c: wenet-hs tree: "):
        case.make("tree")
