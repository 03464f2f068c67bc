# SPDX-License-Identifier: Apache-2.0
"""A field that selects a channel is never ignored: data lists, Kaldi folders, tables and tiers."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from praatio import textgrid
from praatio.data_classes.interval_tier import IntervalTier
from prepared import prepare_line, read_lists, rejected
from pympi import Eaf

from wenet_hs.corpus.audio_check import ClipChecker
from wenet_hs.corpus.channels import find_channel_name
from wenet_hs.corpus.output import find_overlaps
from wenet_hs.data.audio import AudioError, read_utterance
from wenet_hs.data.sampling import UtteranceTable
from wenet_hs.data.shards import open_lists, write_shards
from wenet_hs.decode.segments import find_cuts
from wenet_hs.manifest.data_list import Utterance, format_utterance, parse_utterance
from wenet_hs.report.audio import embed_audio
from wenet_hs.tree.errors import DataError

RATE = 8000
TEXTS = [f"{a} {b} {c}" for a in ("pa", "ta", "ka") for b in ("me", "ne") for c in ("su", "lu")]


def write_call(path: Path, *hertz: float, seconds: float = 24.0) -> Path:
    """Audio with a tone of another frequency per channel."""
    times = np.arange(round(seconds * RATE)) / RATE
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(
        path, np.stack([0.3 * np.sin(2 * np.pi * one * times) for one in hertz], axis=1), RATE
    )
    return path


def frequency(utterance: Utterance) -> int:
    """The frequency of an utterance's strongest component, in Hz."""
    wave = read_utterance(utterance, RATE).numpy()
    return int(round(float(np.abs(np.fft.rfft(wave)).argmax()) * RATE / len(wave), -1))


def prepare(out: Path, words: str) -> tuple[dict[str, Utterance], dict[str, str]]:
    """The utterances by text, and key → reason of those that are rejected."""
    prepare_line(
        f"{words} --out {out} --num_workers 0 --lang qaa --split_by none --max_rejected 0.9"
    )
    return {u.txt: u for of_set in read_lists(out).values() for u in of_set}, rejected(out)


def write_kaldi(folder: Path, wav: str, channels: list[str], **files: list[str]) -> str:
    folder.mkdir()
    lines = {
        "wav.scp": [f"call {wav}"],
        "text": [f"u{n:02d} {text}" for n, text in enumerate(TEXTS)],
        "segments": [
            f"u{n:02d} call {2 * n} {2 * n + 1.5} {channels[n % 2]}" for n in range(len(TEXTS))
        ],
        **files,
    }
    for name, of_file in lines.items():
        (folder / name).write_text("\n".join(of_file) + "\n", "utf-8")
    return f"kaldi --corpus {folder}"


def write_table(path: Path, wav: str, channels: list[Any]) -> str:
    rows = [
        {
            "audio": wav,
            "text": text,
            "start": 2 * n,
            "end": 2 * n + 1.5,
            "channel": channels[n % len(channels)],
        }
        for n, text in enumerate(TEXTS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return f"table --table {path}"


def call_utterance(wav: Path, channel: int | None, **fields: Any) -> Utterance:
    return Utterance(key=f"ch{channel}", wav=str(wav), txt="a", channel=channel, **fields)


def test_the_channel_of_a_data_list_is_read(tmp_path: Path) -> None:
    call = write_call(tmp_path / "call.wav", 200, 330)
    line = json.dumps(
        {"key": "b", "wav": str(call), "txt": "a", "start": 1.0, "end": 3.0, "channel": 1}
    )
    assert json.loads(format_utterance(parse_utterance(line))) == json.loads(line)
    assert [frequency(call_utterance(call, one, start=1.0, end=3.0)) for one in (0, 1)] == [
        200,
        330,
    ]
    with pytest.raises(
        AudioError, match="outside the audio: channel 2, counted from 0, of audio with 2; correct"
    ):
        read_utterance(call_utterance(call, 2), RATE)
    for wrong in ("A", 1.5, -1, True, [0]):
        with pytest.raises(ValueError, match="'channel' is .*, expected a whole number, from 0"):
            parse_utterance(json.dumps({"key": "a", "wav": "a.wav", "txt": "a", "channel": wrong}))


def test_every_part_that_reads_utterances_knows_their_channel(tmp_path: Path) -> None:
    call = write_call(tmp_path / "call.wav", 200, 330, seconds=3.0)
    both = [call_utterance(call, one) for one in (0, 1)]
    table = UtteranceTable(both)
    assert [*table] == both
    assert len({UtteranceTable([one]).digest for one in (*both, call_utterance(call, None))}) == 3
    assert len([*write_shards(both, tmp_path / "shards", num_utts_per_shard=2)]) == 1
    assert [frequency(one) for one in open_lists([tmp_path / "shards" / "data.list"], "shard")] == [
        200,
        330,
    ]
    urls, _, _ = embed_audio({one.key: one for one in both}, [one.key for one in both], 10**6)
    assert len({*urls.values()}) == 2
    assert not [*find_overlaps([replace(one, duration=3.0) for one in both])]
    checker = ClipChecker(tmp_path / "cache")
    usable, faulty = checker.check([*both, call_utterance(call, 5)], "clips")
    assert (len(usable), [one.reason for one in faulty]) == (
        2,
        ["outside the audio: channel 5, counted from 0, of audio with 2"],
    )


def test_cuts_are_in_the_pauses_of_the_channel(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (10 * RATE, 2))
    noise[4 * RATE : 5 * RATE, 0] = noise[6 * RATE : 7 * RATE, 1] = 0.0
    soundfile.write(tmp_path / "a.wav", noise, RATE)
    cuts = [find_cuts(call_utterance(tmp_path / "a.wav", one), 8.0)[1] for one in (0, 1)]
    assert cuts == [[pytest.approx(4.5, abs=0.1)], [pytest.approx(6.5, abs=0.1)]]


@pytest.mark.parametrize("channels", [["0", "1"], ["-1", "-1"], ["", ""], ["0", "2"]])
def test_the_fifth_field_of_segments_is_the_channel(tmp_path: Path, channels: list[str]) -> None:
    write_call(tmp_path / "call.wav", 200, 330)
    found, rejected = prepare(
        tmp_path / "out", write_kaldi(tmp_path / "train", str(tmp_path / "call.wav"), channels)
    )
    expected = {None if one in ("", "-1") else int(one) for one in channels} - {2}
    assert {u.channel for u in found.values()} == expected
    assert {frequency(u) for u in found.values() if u.channel == 0} == (
        {200} if 0 in expected else set()
    )
    reasons = (
        {"outside the audio: channel 2, counted from 0, of audio with 2"}
        if "2" in channels
        else set()
    )
    assert {*rejected.values()} == reasons


@pytest.mark.parametrize(("sides", "channels"), [("AB", [0, 1]), ("12", [0, 1]), ("11", [0, 0])])
def test_reco2file_and_channel_counts_where_a_recording_has_several(
    tmp_path: Path, sides: str, channels: list[int]
) -> None:
    wavs = [
        write_call(tmp_path / name, *hertz)
        for name, hertz in (("call.wav", (200, 330)), ("mono.wav", (500,)))
    ]
    for wav, expected in zip(wavs, (channels, [None, None]), strict=True):
        names = ["s1", "s2"] if wav.stem == "call" else ["s1"]
        files = {
            "wav.scp": [f"{name} {wav}" for name in names],
            "reco2file_and_channel": [f"{name} call {sides[n]}" for n, name in enumerate(names)],
            "segments": [
                f"u{n:02d} {names[n % len(names)]} {2 * n} {2 * n + 1.5}" for n in range(len(TEXTS))
            ],
        }
        found, _ = prepare(
            tmp_path / f"out-{wav.stem}", write_kaldi(tmp_path / wav.stem, "", ["", ""], **files)
        )
        assert [found[text].channel for text in TEXTS] == expected * 6


@pytest.mark.parametrize(
    ("written", "channels"),
    [
        (["left", "Right"], [0, 1]),
        (["A", "B"], [0, 1]),
        ([0, 1], [0, 1]),
        ([1, 2], [0, 1]),
        (["2.0", "1.0"], [1, 0]),
        (["ch1"], [0]),
        (["channel 0", "channel_1"], [0, 1]),
        (["", "average"], [None, None]),
    ],
)
def test_the_channel_column_of_a_table(
    tmp_path: Path, written: list[Any], channels: list[int | None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_call(tmp_path / "call.wav", 200, 330)
    found, rejected = prepare(
        tmp_path / "out", write_table(tmp_path / "t.jsonl", "call.wav", written)
    )
    assert not rejected
    assert [found[text].channel for text in TEXTS] == channels * (len(TEXTS) // len(channels))
    assert (
        channels[0] is None
        or f"channels, counted from 0: {str(written[0])!r} is {channels[0]} (" in caplog.text
    )


@pytest.mark.parametrize(
    ("hertz", "written", "reason"),
    [
        (
            (200, 330),
            ["right", "1"],
            "channel: '1' of audio with 2 may count from 0 or from 1; write left, right, A or B",
        ),
        ((200, 330), ["0", "2"], "outside the audio: channel '2' of audio with 2"),
        ((200, 330), ["A", "C"], "outside the audio: channel 'c' of audio with 2"),
        (
            (200, 330),
            ["A", "BBC"],
            "channel: 'bbc' is not known; .* ignore the column: --columns \"channel=\"",
        ),
        (
            (200,),
            ["", "A", "B", ""],
            "channel: the audio has only one, the data name a, b; give the original audio",
        ),
    ],
)
def test_a_channel_that_is_not_clear_is_refused(
    tmp_path: Path, hertz: tuple[int, ...], written: list[str], reason: str
) -> None:
    write_call(tmp_path / "call.wav", *hertz)
    found, rejected = prepare(
        tmp_path / "out", write_table(tmp_path / "t.jsonl", "call.wav", written)
    )
    assert len(found) == len(rejected) == len(TEXTS) // 2
    [found_reason] = {*rejected.values()}
    assert re.fullmatch(reason, found_reason)


def test_channels_that_were_extracted_before_need_no_name(tmp_path: Path) -> None:
    write_call(tmp_path / "call_B.wav", 330)
    found, _ = prepare(tmp_path / "out", write_table(tmp_path / "t.jsonl", "call_B.wav", ["B"]))
    assert {u.channel for u in found.values()} == {None}


def test_keys_of_two_speakers_at_the_same_times_differ_by_the_channel(tmp_path: Path) -> None:
    write_call(tmp_path / "call.wav", 200, 330)
    rows = [
        {
            "audio": "call.wav",
            "text": f"{text} {side}",
            "start": 2 * n,
            "end": 2 * n + 1.5,
            "channel": side,
        }
        for n, text in enumerate(TEXTS)
        for side in "AB"
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    found, rejected = prepare(tmp_path / "out", f"table --table {tmp_path / 't.jsonl'}")
    assert (len(found), rejected) == (24, {})
    assert found[f"{TEXTS[1]} b"].key == "call-ch1-0002000-0003500"
    assert {frequency(u) for txt, u in found.items() if txt.endswith("b")} == {330}
    assert (tmp_path / "out" / "overlapping.tsv").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("names", "channels"),
    [
        (("left", "right"), (0, 1)),
        (("Ch 1", "Ch 2"), (0, 1)),
        (("A", "B"), (None, None)),
        (("2023", "2024"), (None,) * 2),
    ],
)
def test_tiers_with_the_name_of_a_channel(
    tmp_path: Path, names: tuple[str, str], channels: tuple[int | None, int | None]
) -> None:
    write_call(tmp_path / "call.wav", 200, 330)
    write_call(tmp_path / "mono" / "mono.wav", 200)
    spans = [(2.0 * n, 2.0 * n + 1.5, text) for n, text in enumerate(TEXTS)]
    for path, expected in (
        (tmp_path / "call.wav", channels),
        (tmp_path / "mono" / "mono.wav", (None, None)),
    ):
        grid, eaf = textgrid.Textgrid(0, 24.0), Eaf()
        eaf.remove_tier("default")
        for name, of_tier in zip(names, (spans[::2], spans[1::2]), strict=True):
            grid.addTier(IntervalTier(name, of_tier, 0, 24.0))
            eaf.add_tier(f"utt {name}", part=name)
            for begin, end, text in of_tier:
                eaf.add_annotation(f"utt {name}", round(1000 * begin), round(1000 * end), text)
        grid.save(
            str(path.with_suffix(".TextGrid")), format="short_textgrid", includeBlankSpaces=True
        )
        eaf.to_file(str(path.with_suffix(".eaf")))
        for form, suffix in (("praat", ".TextGrid"), ("elan", ".eaf")):
            words = f"{form} --corpus {path.with_suffix(suffix)} --tier *"
            found, _ = prepare(tmp_path / f"out-{path.stem}-{form}", words)
            assert [found[text].channel for text in TEXTS[:2]] == [*expected]


@pytest.mark.parametrize(
    ("command", "channel"),
    [
        ("flac -c -d -s X |", None),
        ("/usr/bin/flac -cds --silent 'X' |", None),
        ("cat X|", None),
        ("tools/sph2pipe_v2.5/sph2pipe -f wav -p X |", None),
        ("sph2pipe -f wav -p -c 2 X |", 1),
        ("sox X -t wav - |", None),
        ('sox -t wav "X" -r 16000 -b 16 -e signed -t wav - remix 2 |', 1),
        ("sox X -t wav - rate -v 16k |", None),
        ("sox X -c 1 -t wav - |", None),
        (
            "ffmpeg -nostdin -v error -i X -vn -ar 16000 -ac 1 -acodec pcm_s16le -f wav - 2>/dev/null |",
            None,
        ),
        ("ffmpeg -i X -f wav pipe:1 |", None),
    ],
)
def test_commands_that_only_decode_a_file_are_its_path(
    tmp_path: Path, command: str, channel: int | None
) -> None:
    call = str(write_call(tmp_path / "call.wav", 200, 330))
    words = write_kaldi(
        tmp_path / "train", command.replace("X", call), ["", "0"] if channel else ["", ""]
    )
    found, rejected = prepare(tmp_path / "out", words)
    assert not rejected and {(u.wav, u.channel) for u in found.values()} == {(call, channel)}


def test_a_segment_of_a_channel_that_a_command_does_not_give_is_refused(tmp_path: Path) -> None:
    call = write_call(tmp_path / "call.wav", 200, 330)
    _, rejected = prepare(
        tmp_path / "out", write_kaldi(tmp_path / "train", f"sph2pipe -p -c 1 {call} |", ["", "1"])
    )
    assert {*rejected.values()} == {"outside the audio: channel 1 of a command that gives only one"}


@pytest.mark.parametrize(
    "command",
    [
        "sox X -t wav - trim 0 9 |",
        "sox -v 2 X -t wav - |",
        "sox X -t wav - speed 1.1 |",
        "sox -t raw -r 8000 X -t wav - |",
    ]
    + [
        "ffmpeg -ss 3 -i X -f wav - |",
        "ffmpeg -i X -af volume=2 -f wav - |",
        "sph2pipe -t 0:3 -f wav X |",
    ]
    + [
        "flac -cd --skip=9 X |",
        "flac -c -d X | sox - -t wav - speed 2 |",
        "cat X; rm X |",
        "cat $(ls) |",
        "cat |",
    ],
)
def test_commands_that_do_more_are_refused(tmp_path: Path, command: str) -> None:
    with pytest.raises(
        DataError, match="1 of 1 recordings are commands, such as call: .*; run each once"
    ):
        prepare(tmp_path / "out", write_kaldi(tmp_path / "train", command, ["", ""]))


def test_the_name_of_a_person_is_no_name_of_a_channel() -> None:
    for name in ("Cha", "che", "CHANA", "Chane", "a", "1", "B 2"):
        assert find_channel_name([name]) is None, name
    for name in ("ch1", "Ch A", "chan_b", "channel a", "channelA", "chL", "left"):
        assert find_channel_name(["Ana", name]) == name
