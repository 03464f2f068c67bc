# SPDX-License-Identifier: Apache-2.0
"""`transcribe --stream`: files, a pipe of samples, wrong flags; `recognize` in chunks."""

import io
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from command_line import Capsys, error_line, run_line
from model_folders import noise, write_clip, write_model_folder

from wenet_hs.bin import recognize, stream_audio, transcribe
from wenet_hs.decode.stream import RecognitionStream, StreamedSegment
from wenet_hs.manifest.data_list import write_data_list
from wenet_hs.recognizer import load_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    streaming = {"causal": True, "use_dynamic_chunk": True}
    return write_model_folder(tmp_path_factory.mktemp("models") / "stream", encoder_conf=streaming)


def test_a_file_and_a_pipe_give_the_segments_of_the_stream(
    folder: Path,
    tmp_path: Path,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    samples = (noise(2.0) * 32767).astype("<i2")
    soundfile.write(tmp_path / "a.wav", samples, 16000)
    stream = load_model(folder).stream()
    expected = stream.feed(samples, 16000) + stream.finish()
    assert expected
    line = f"--model_dir {folder} --device cpu --stream"
    lines = [f"{one.start:8.2f} {one.end:8.2f}  {one.text}\n" for one in expected]
    assert run_line(transcribe, f"{line} {tmp_path}/a.wav") == 0
    assert capsys.readouterr().out == "".join(lines)
    assert run_line(transcribe, f"{line} {tmp_path}/a.wav {tmp_path}/none.wav") == 2
    printed = capsys.readouterr()
    assert printed.out == "".join(f"{tmp_path}/a.wav: {one}" for one in lines)
    assert printed.err.startswith(f"{tmp_path}/none.wav: missing")
    soundfile.write(tmp_path / "loud.wav", 20 * noise(2.0), 16000, subtype="FLOAT")
    assert run_line(transcribe, f"{line} {tmp_path}/loud.wav {tmp_path}/a.wav") == 2
    printed = capsys.readouterr()
    assert printed.out.endswith("".join(f"{tmp_path}/a.wav: {one}" for one in lines))
    assert (
        "loud.wav: waveform: a peak of" in printed.err
        and "must be finite and in [-1, 1]" in printed.err
    )
    content = (tmp_path / "a.wav").read_bytes()
    (tmp_path / "cut.wav").write_bytes(content[: len(content) // 2])
    assert run_line(transcribe, f"{line} {tmp_path}/cut.wav") == 2
    assert "cut.wav: cut off: 0.999 s" in capsys.readouterr().err
    pipe = io.BufferedReader(io.BytesIO(samples.tobytes()))  # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=pipe))
    assert run_line(transcribe, f"{line} --json -") == 0
    records = [json.loads(one) for one in capsys.readouterr().out.splitlines()]
    assert [(one["path"], one["text"], one["start"]) for one in records] == [
        ("-", e.text, e.start) for e in expected
    ]
    assert [unit["text"] for unit in records[0]["units"]] == [
        unit.text for unit in expected[0].units or ()
    ]
    odd = io.BufferedReader(io.BytesIO(samples.tobytes()[:-1]))  # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=odd))
    assert run_line(transcribe, f"{line} -") == 0
    assert (
        "-: the pipe ends in the middle of a sample of 16 bits; its last byte is left out"
        in caplog.text
    )
    assert len(capsys.readouterr().out.splitlines()) == len(expected), "what arrived is recognised"


def set_pipe(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """The bytes of the pipe `-`."""
    pipe = io.BufferedReader(io.BytesIO(content))  # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=pipe))


def test_a_wav_in_the_pipe_gives_the_lines_of_the_file(
    folder: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"--model_dir {folder} --device cpu --stream"
    stereo = np.stack([noise(2.0, rate=48000), noise(2.0, rate=48000, seed=1)], axis=1)
    path = tmp_path / "a.wav"
    soundfile.write(path, stereo, 48000, subtype="PCM_24")
    assert run_line(transcribe, f"{line} {path}") == 0
    lines = capsys.readouterr().out
    assert lines
    set_pipe(monkeypatch, path.read_bytes())
    assert run_line(transcribe, f"{line} -") == 0
    assert capsys.readouterr().out == lines
    set_pipe(monkeypatch, path.read_bytes())
    assert run_line(transcribe, f"{line} --rate 16000 -") == 2
    expected = "--rate 16000: the WAV in the pipe has 48000 Hz; leave --rate out\n"
    assert capsys.readouterr().err.startswith(expected)


def test_an_empty_pipe_and_text_are_refused_in_one_line(
    folder: Path,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = f"--model_dir {folder} --device cpu --stream -"
    expected = {
        b"": "-: empty: no audio arrived; check the program that writes the audio",
        b"hello world text": "-: text in the pipe, which takes raw samples or WAV; give the recording",
    }
    for content, message in expected.items():
        set_pipe(monkeypatch, content)
        assert run_line(transcribe, line) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.splitlines()[0] == message


def test_another_format_in_the_pipe_is_refused_and_the_named_remedies_work(
    folder: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"--model_dir {folder} --device cpu --stream"
    path = tmp_path / "a.flac"
    soundfile.write(path, noise(2.0), 16000)
    set_pipe(monkeypatch, path.read_bytes())
    command = "ffmpeg -i - -f s16le -ar 16000 -ac 1 -"
    assert run_line(transcribe, f"{line} -") == 2
    assert capsys.readouterr().err.startswith(
        "-: FLAC in the pipe, which takes raw samples or WAV; "
        f"give the file by its name, or put `{command}` before this command\n"
    )
    assert run_line(transcribe, f"{line} {path}") == 0
    lines = capsys.readouterr().out
    assert lines
    if shutil.which("ffmpeg") is None:
        return
    flac = path.read_bytes()
    ffmpeg = subprocess.run(command.split(), input=flac, capture_output=True, check=True)
    set_pipe(monkeypatch, ffmpeg.stdout)
    assert run_line(transcribe, f"{line} -") == 0
    assert capsys.readouterr().out == lines


def test_ctrl_c_ends_the_pipe_after_a_whole_chunk(
    folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent while the stream computes, and has an effect when the next samples are waited for."""
    samples, calls, feed = (noise(2.0) * 32767).astype("<i2"), [], RecognitionStream.feed

    def feed_and_interrupt(self: RecognitionStream, *given: Any) -> list[StreamedSegment]:
        calls.append(given)
        if len(calls) == 12:
            os.kill(os.getpid(), signal.SIGINT)
        return feed(self, *given)

    monkeypatch.setattr(RecognitionStream, "feed", feed_and_interrupt)
    pipe = io.BufferedReader(io.BytesIO(samples.tobytes()))  # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=pipe))
    assert run_line(transcribe, f"--model_dir {folder} --device cpu --stream -") == 0
    assert len(calls) == 12
    stream = load_model(folder).stream()
    expected = feed(stream, b"".join(piece for piece, _ in calls), 16000) + stream.finish()
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == [
        one.text for one in expected
    ]


def test_a_job_that_ignores_ctrl_c_goes_on_to_ignore_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stream_audio._DelayedInterrupt():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("-", "-: a pipe is read only by --stream; add --stream, or give a file"),
        ("--rate 8000 a.wav", "--rate: has no effect without --stream; add it, or leave this out"),
        ("--stream --rate 500 -", "--rate 500: must be from 1000 to 1000000 Hz"),
        (
            "--stream --rate 8000 a.wav",
            "--rate: is that of a pipe; a file states its own; leave it out, or give -",
        ),
        ("--stream --silence_s 0 a.wav", "--silence_s 0: must be above 0"),
        ("--stream --nbest 2 a.wav", "--nbest: has no effect with --stream; leave one of them out"),
        ("--stream --max_segment_s 1 a.wav", "--max_segment_s 1: must be at least 4"),
        ("--stream --srt x a.wav", "--srt: --stream prints its segments; leave one of them out"),
        (
            "--stream --decoding_chunk_size -2 a.wav",
            "--decoding_chunk_size -2: must be at least 1, or -1",
        ),
    ],
)
def test_wrong_flags_are_one_line(folder: Path, flags: str, message: str, capsys: Capsys) -> None:
    assert error_line(run_line(transcribe, f"--model_dir {folder} {flags}"), capsys).startswith(
        message
    )


def test_recognition_in_chunks_and_chunk_by_chunk_give_the_same(
    folder: Path, tmp_path: Path
) -> None:
    clips = [
        write_clip(tmp_path / f"{number}.wav", 0.7 + 0.4 * number, seed=number)
        for number in range(3)
    ]
    write_data_list(tmp_path / "data.list", clips)
    line = f"--model_dir {folder} --test_data {tmp_path}/data.list --device cpu --modes ctc_greedy_search --result_dir"
    found = {}
    chunks = "--decoding_chunk_size 4 --num_decoding_left_chunks 1"
    for name, flags in (
        ("whole", ""),
        ("masked", chunks),
        ("streamed", f"{chunks} --simulate_streaming"),
    ):
        assert run_line(recognize, f"{line} {tmp_path}/{name} {flags}") == 0
        lines = (
            (tmp_path / name / "ctc_greedy_search" / "hyps.jsonl").read_text("utf-8").splitlines()
        )
        found[name] = [json.loads(one)["score"] for one in lines]
    assert found["masked"] == pytest.approx(found["streamed"], abs=1e-3)
    assert found["masked"] != pytest.approx(found["whole"], abs=1e-2)
    assert (
        json.loads((tmp_path / "masked" / "rtf.json").read_text("utf-8"))["decoding_chunk_size"]
        == 4
    )
