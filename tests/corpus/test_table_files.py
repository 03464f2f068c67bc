# SPDX-License-Identifier: Apache-2.0
"""Files that contain a table: without names of columns, `key transcript` lines, whole JSON,
compressed, lhotse.
"""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from annotation_forms import write_audio
from prepared import prepare_line, read_lists

from wenet_hs.corpus.table_files import read_table_file
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.tree.errors import DataError

NAMES = [f"LX-{n:02d}" for n in range(6)]
TEXTS = [f"pa {a} {b}" for a in ("me", "ne") for b in ("su", "lu", "ki")]


def prepare(folder: Path, words: str) -> dict[str, Utterance]:
    """The utterances by key."""
    out = folder / "out"
    prepare_line(f"{words} --out {out} --num_workers 0 --split_by none --max_rejected 0.9")
    return {u.key: u for of_set in read_lists(out).values() for u in of_set}


def write_clips(folder: Path) -> None:
    for name in NAMES:
        write_audio(folder / f"{name}.wav", seconds=0.3)


@pytest.mark.parametrize(
    ("name", "line", "assumed"),
    [
        (
            "metadata.csv",
            "{key}|{raw}|{text}",
            "bar-separated, utf-8, without names of columns: column 1 is taken .* 3 for",
        ),
        (
            "line_index.tsv",
            "{key}\t{text}",
            "tab-separated.* column 1 is taken for the audio, 2 for the text",
        ),
        ("line_index.tsv", "s1\t{key}\t{text}", "column 2 is taken for the audio, 3 for the text"),
        (
            "train.tsv",
            "7\t{key}.wav\t{raw}\t{text}\t{spelt}\tFEMALE",
            "column 2 is taken for the audio, 4 for the text",
        ),
        ("a.trans.txt", "{key} {text}", "`key transcript` lines, utf-8, without names of columns"),
        ("transcripts.txt", "{key}\t{text}", "without names of columns"),
    ],
    ids=["ljspeech", "openslr", "openslr-speaker", "fleurs", "librispeech", "mls"],
)
def test_tables_without_names_of_columns_are_read_and_what_was_assumed_is_printed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, line: str, assumed: str
) -> None:
    write_clips(tmp_path / "corpus" / "wavs")
    lines = [
        line.format(
            key=key,
            raw=f"{text.title()}, 5." if n % 3 else f"{text.title()}.",
            text=text,
            spelt=" ".join(text),
        )
        for n, (key, text) in enumerate(zip(NAMES, TEXTS, strict=True))
    ]
    table = tmp_path / "corpus" / name
    table.write_text("\n".join(lines) + "\n", "utf-8")
    caplog.set_level("INFO")
    for words in (f"table --table {table}", f"folder --corpus {tmp_path / 'corpus'}"):
        if name != "train.tsv" or words.startswith("table"):
            found = prepare(tmp_path / words.split()[0], f"{words} --lang qaa")
            assert {key: u.txt for key, u in found.items()} == dict(zip(NAMES, TEXTS, strict=True))
            assert re.search(assumed, caplog.text)
            caplog.clear()


def test_names_of_columns_are_never_taken_for_a_row_and_a_row_never_for_names(
    tmp_path: Path,
) -> None:
    write_clips(tmp_path)
    write_audio(tmp_path / "text.wav", seconds=0.3)  # a file with the name of a column
    rows = [f"{key},{text}" for key, text in zip(NAMES, TEXTS, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["Path,Text", *rows]))
    assert prepare(tmp_path, f"table --table {tmp_path / 't.csv'}").keys() == {*NAMES}
    (tmp_path / "t.csv").write_text("\n".join(["Datei,Wortlaut", *rows]))
    assert prepare(
        tmp_path, f'table --table {tmp_path / "t.csv"} --columns "audio=Datei text=Wortlaut"'
    ).keys() == {*NAMES}
    with pytest.raises(
        DataError, match="t.csv:1: no column of audio, text; name them: .*, of: Datei, Wortlaut"
    ):
        prepare(tmp_path, f"table --table {tmp_path / 't.csv'}")
    (tmp_path / "t.csv").write_text("utt\ts1\t0.5\t1.5\tpa\nutt\ts1\t2.5\t3.5\tna\n")
    with pytest.raises(
        DataError, match="if the first line has no names, write them, or put the audio beside it"
    ):
        prepare(tmp_path, f"table --table {tmp_path / 't.csv'}")
    (tmp_path / "t.csv").write_text("\n".join(f"{key},word,other" for key in NAMES))
    with pytest.raises(
        DataError,
        match="t.csv: no names of columns; columns 2, 3 can be the text; write a first line",
    ):
        prepare(tmp_path, f"table --table {tmp_path / 't.csv'}")


def test_a_sentence_about_recordings_is_no_listing_of_a_folder(tmp_path: Path) -> None:
    write_clips(tmp_path)
    (tmp_path / "README.txt").write_text(
        f"Recordings {NAMES[0]} to {NAMES[-1]} were made in 2024.\n"
    )
    with pytest.raises(DataError, match=f"no transcript {len(NAMES)}, no audio 1, see "):
        prepare(tmp_path, f"folder --corpus {tmp_path}")


def test_transcripts_of_another_folder_are_found_by_name(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    write_clips(corpus / "wav48" / "p225")
    for key, text in zip(NAMES, TEXTS, strict=True):
        (corpus / "txt" / "p225").mkdir(parents=True, exist_ok=True)
        (corpus / "txt" / "p225" / f"{key}.txt").write_text(text)
    assert {
        key: u.txt for key, u in prepare(tmp_path, f"folder --corpus {corpus}").items()
    } == dict(zip(NAMES, TEXTS, strict=True))


RECORDS = [
    {"wav": f"{{data_root}}/a/{key}.wav", "text": text}
    for key, text in zip(NAMES, TEXTS, strict=True)
]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        json.dumps(RECORDS, indent=1),
        json.dumps(dict(zip(NAMES, RECORDS, strict=True)), indent=2),
        json.dumps({"version": 1, "data": RECORDS}),
        "".join(json.dumps(record) + "\n" for record in RECORDS),
        json.dumps(
            [{"audio": {"path": one["wav"], "bytes": None}, "text": one["text"]} for one in RECORDS]
        ),
    ],
    ids=["array", "speechbrain", "member", "lines", "huggingface"],
)
def test_json_over_several_lines_and_compressed(
    tmp_path: Path, content: str, compress: bool
) -> None:
    write_clips(tmp_path / "a")
    path = tmp_path / ("t.json.gz" if compress else "t.json")
    path.write_bytes(gzip.compress(content.encode()) if compress else content.encode())
    assert {key: u.txt for key, u in prepare(tmp_path, f"table --table {path}").items()} == dict(
        zip(NAMES, TEXTS, strict=True)
    )


def test_ids_of_sentences_are_no_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_clips(tmp_path)
    rows = [f"{n // 2},{key},{TEXTS[n // 2]}" for n, key in enumerate(NAMES)]
    (tmp_path / "t.csv").write_text("\n".join(["id,file_name,text", *rows]))
    caplog.set_level("INFO")
    assert prepare(tmp_path, f"table --table {tmp_path / 't.csv'}").keys() == {*NAMES}
    assert "column 'id' names no clips: 6 clips have 3 different ids; it is not used" in caplog.text


def write_lhotse(
    folder: Path, suffix: str, supervisions: list[dict[str, Any]], source: dict[str, Any]
) -> Path:
    write_audio(folder / "call.wav", seconds=12)
    recording = {
        "id": "call",
        "sources": [source],
        "sampling_rate": 8000,
        "num_samples": 96_000,
        "duration": 12.0,
    }
    for name, records in (("recordings", [recording]), ("supervisions", supervisions)):
        content = "".join(json.dumps(record) + "\n" for record in records).encode()
        (folder / f"x_{name}{suffix}").write_bytes(
            gzip.compress(content) if suffix.endswith(".gz") else content
        )
    return folder / f"x_supervisions{suffix}"


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_supervisions_of_lhotse_have_the_audio_and_channel_of_their_recordings(
    tmp_path: Path, suffix: str
) -> None:
    supervisions = [
        {
            "id": f"u{n}",
            "recording_id": "call",
            "start": 2.0 * n,
            "duration": 1.5,
            "channel": 3,
            "text": text,
        }
        for n, text in enumerate(TEXTS)
    ]
    source = {"type": "file", "channels": [3], "source": "call.wav"}
    path = write_lhotse(tmp_path, suffix, supervisions, source)
    found = prepare(tmp_path, f"table --table {path}")
    assert [(u.txt, u.start, u.end, u.channel) for _, u in sorted(found.items())] == [
        (text, 2.0 * n, 2.0 * n + 1.5, None) for n, text in enumerate(TEXTS)
    ]
    several = {**source, "channels": [0, 1]}
    for given, expected in ((1, "B"), ([0], "A"), ([0, 1], None)):
        path = write_lhotse(tmp_path, suffix, [{**supervisions[0], "channel": given}], several)
        (_, row), *_ = read_table_file(path, None, str.isalpha, lambda cell: False).rows
        assert isinstance(row, dict) and (row["audio"], row["channel"]) == ("call.wav", expected)
    with pytest.raises(
        DataError, match="'call' is of the type 'command'; save its audio as a file"
    ):
        prepare(
            tmp_path,
            f"table --table {write_lhotse(tmp_path, suffix, supervisions, {**source, 'type': 'command'})}",
        )
    (tmp_path / f"x_recordings{suffix}").unlink()
    with pytest.raises(
        DataError, match=r"supervisions of lhotse, without x_recordings.jsonl\(.gz\) beside it; put"
    ):
        prepare(tmp_path, f"table --table {path}")


def test_json_with_the_fields_of_supervisions_is_a_table_of_the_user(tmp_path: Path) -> None:
    write_audio(tmp_path / "call.wav", seconds=12)
    rows = [
        {"recording_id": "call", "start": 2.0 * n, "duration": 1.5, "text": text}
        for n, text in enumerate(TEXTS)
    ]
    for added in ({}, {"audio": "call.wav", "recording_id": "r1"}):
        (tmp_path / "t.jsonl").write_text(
            "".join(json.dumps({**row, **added}) + "\n" for row in rows)
        )
        assert [
            u.txt
            for _, u in sorted(prepare(tmp_path, f"table --table {tmp_path / 't.jsonl'}").items())
        ] == TEXTS


def test_values_that_are_missing_in_json_are_no_text(tmp_path: Path) -> None:
    """Python writes pandas' missing values as NaN."""
    write_clips(tmp_path)
    rows = [
        {"path": name, "text": text if n else float("nan"), "speaker": float("nan"), "tags": ["a"]}
        for n, (name, text) in enumerate(zip(NAMES, TEXTS, strict=True))
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = prepare(tmp_path, f"table --table {tmp_path / 't.jsonl'}")
    assert {u.txt: u.speaker for u in found.values()} == dict.fromkeys(TEXTS[1:])


def test_one_object_with_a_list_of_values_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"path": "a.wav", "text": "mo", "tags": ["x", "y"]}')
    assert len(read_table_file(path, None, str.isalpha, lambda cell: False).rows) == 1
    assert read_table_file(path, None, str.isalpha, lambda cell: False).header == [
        "path",
        "text",
        "tags",
    ]


CUT = json.dumps(
    {"id": "c", "start": 0, "duration": 1, "type": "MonoCut", "supervisions": [], "recording": {}}
)
SUPERVISION = json.dumps({"id": "s", "recording_id": "r", "start": 0, "duration": 1, "channel": 0})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "cuts.jsonl.gz",
            gzip.compress(CUT.encode()),
            "cuts.jsonl.gz:1: cuts of lhotse; in Python, `lhotse.CutSet.from",
        ),
        (
            "x.jsonl",
            SUPERVISION.encode(),
            "x.jsonl:1: supervisions of lhotse; make a data.list of them with `wenet-hs",
        ),
        (
            "shards.list",
            b"/data/shard_000.tar\n",
            "shards.list: a list of shards .tars., which are trained with --data_t",
        ),
        (
            "a.tar",
            b"\xff" * 257 + b"ustar" + b"\0" * 99,
            "a.tar: a tar; WeNet's shards are trained with a list of tars",
        ),
        ("a.parquet", b"PAR1\xff\xff", "a.parquet: Parquet; in Python, `pandas.read_parquet"),
        ("a.wav", b"RIFF\xff\xff", "a.wav: audio, not text"),
    ],
    ids=["cuts", "supervisions", "shards", "tar", "parquet", "wav"],
)
def test_other_files_are_named_by_check_and_training(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_data_list(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", b"PAR1\xff", "a.parquet: Parquet; in Python, `pandas.read_parquet"),
        ("cuts.jsonl", CUT.encode(), "cuts.jsonl: cuts of lhotse"),
        ("t.csv.gz", b"\x1f\x8b\x08", "t.csv.gz: not a complete .gz file"),
        ("", b"", "a folder; name a file in it, or give it to `wenet-hs prepare folder`"),
    ],
    ids=["parquet", "cuts", "gz", "folder"],
)
def test_other_files_are_named_by_prepare(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    if name:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, f"table --table {tmp_path / name}")


def test_a_folder_with_audio_inside_of_tables_says_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "data-0.arrow").write_bytes(b"ARROW1\x00")
    with pytest.raises(
        DataError,
        match="no audio file, but data-0.arrow: a dataset in Arrow; .*, and name them in the table",
    ):
        prepare(tmp_path, f"folder --corpus {tmp_path / 'corpus'}")
