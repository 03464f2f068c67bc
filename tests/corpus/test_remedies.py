# SPDX-License-Identifier: Apache-2.0
"""What a line tells the user to do is done here, and works."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
from annotation_forms import write_audio
from made_up_release import Row, write_language
from prepared import prepare_line

from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.corpus.check import KINDS, check_lists
from wenet_hs.data.audio import AudioError, read_audio
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import WenetHsError

TEXTS = [f"{a}{b}" for a in ("pa", "ta", "ka") for b in ("me", "ne")]


def prepare(out: Path, words: str) -> int:
    """The number of utterances in the lists."""
    flags = f"--out {out} --num_workers 0"
    total = prepare_line(f"{words} {flags}")["total"]
    return sum(total["utterances"].values())


def message_of(out: Path, words: str) -> str:
    """The line of a command that is refused."""
    with pytest.raises(WenetHsError) as caught:
        prepare(out, words)
    return str(caught.value)


def write_clips(folder: Path) -> None:
    for number in range(len(TEXTS)):
        write_audio(folder / f"{number}.wav", seconds=0.5)


def test_a_table_with_one_column_of_times(tmp_path: Path) -> None:
    write_clips(tmp_path)
    flags = {"start": '"end=…" (or "duration=…")', "end": '"start=…"'}
    for name, other in (("start", "end or duration"), ("end", "start")):
        table = tmp_path / f"{name}.csv"
        rows = [f"{number}.wav,{text},0.4" for number, text in enumerate(TEXTS)]
        table.write_text("\n".join([f"path,text,{name}", *rows]))
        words = f"table --table {table} --lang mdw"
        assert message_of(tmp_path / name, words) == (
            f"{table}:1: no column of {other}; name them: --columns {flags[name]}, of: path, text, "
            f'{name}; or use whole files: --columns "{name}="'
        )
        assert prepare(tmp_path / name, f'{words} --columns "{name}="') == len(TEXTS)


def test_equal_transcripts(tmp_path: Path) -> None:
    write_clips(tmp_path)
    for number in range(len(TEXTS)):
        (tmp_path / f"{number}.txt").write_text("file")
    words = f"folder --corpus {tmp_path} --lang mdw"
    remedy = "give the transcript of each clip"
    assert message_of(tmp_path / "out", words).endswith(f"all 6 transcripts are 'file'; {remedy}")
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(text)
    assert prepare(tmp_path / "out", words) == len(TEXTS)
    rows = [f"{number}.wav,file,{text}" for number, text in enumerate(TEXTS)]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["path,text,utterance", *rows]))
    words = f"table --table {table} --lang mdw"
    remedy = 'name the column of the transcripts: --columns "text=…"'
    assert message_of(tmp_path / "table", words).endswith(f"are 'file'; {remedy}")
    assert prepare(tmp_path / "table", f'{words} --columns "text=utterance"') == len(TEXTS)


def test_a_folder_without_transcripts_or_recordings(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    write_clips(corpus)
    words = f"folder --corpus {corpus} --lang mdw"
    found = "no metadata.csv, and no x.txt beside x.wav"
    remedy = "write the transcript of each x.wav into x.txt beside it"
    assert message_of(tmp_path / "out", words) == f"{corpus}: {found}; {remedy}"
    for number, text in enumerate(TEXTS):
        (corpus / f"{number}.txt").write_text(text)
    assert prepare(tmp_path / "out", words) == len(TEXTS)
    packed = tmp_path / "packed"
    shutil.make_archive(str(packed / "clips"), "zip", corpus)
    words = f"folder --corpus {packed} --lang mdw"
    assert message_of(tmp_path / "other", words) == (
        f"{packed}: no audio file, but clips.zip; unpack it there, if it has the recordings"
    )
    shutil.unpack_archive(packed / "clips.zip", packed)
    assert prepare(tmp_path / "other", words) == len(TEXTS)


# ---- Common Voice


def write_release(corpus: Path, num_clips: int = 40) -> str:
    """A release of one language, and the words that prepare it."""
    rows = [Row(f"ca_{n}.wav", f"Frase {n}", f"voice{n % 9}", 0.5) for n in range(num_clips)]
    write_language(corpus / "ca", rows, clips="tone")
    return f"commonvoice --corpus {corpus} --langs ca --ratio 1"


def test_the_folder_of_one_language_is_given(tmp_path: Path) -> None:
    corpus = tmp_path / "cv"
    words = write_release(corpus)
    remedy = f"give the folder above: --corpus {corpus} --langs ca"
    message = message_of(tmp_path / "out", words.replace(str(corpus), str(corpus / "ca")))
    assert message == f"{corpus / 'ca'}: the folder of one language; {remedy}"
    assert prepare(tmp_path / "out", words) > 0


@pytest.mark.parametrize("has_durations", [True, False])
def test_clips_that_are_not_unpacked(tmp_path: Path, has_durations: bool) -> None:
    corpus = tmp_path / "cv"
    words = write_release(corpus)
    clips = corpus / "ca" / "clips"
    clips.rename(tmp_path / "packed")
    out = tmp_path / "out"
    if has_durations:
        found = "40 of 40 clips cannot be used (missing 40)"
        expected = f"{out / 'rejected.tsv'}: {found}; put the audio where this file says"
    else:
        (corpus / "ca" / "clip_durations.tsv").unlink()
        found = "no clip of this language can be used (missing 40)"
        remedy = f"unpack the clips of the release into {clips}, or leave ca out of --langs"
        expected = f"{corpus / 'ca'}: {found}; {remedy}"
    assert message_of(out, words) == expected
    (tmp_path / "packed").rename(clips)
    assert prepare(out, words) > 0


def test_faulty_clips_may_be_allowed_unless_all_are(tmp_path: Path) -> None:
    corpus = tmp_path / "cv"
    words = f"{write_release(corpus)} --max_rejected 0.1"
    clips = sorted((corpus / "ca" / "clips").iterdir())
    for clip in clips[:10]:
        clip.write_text("no audio")
    found = "10 of 40 clips cannot be used (not audio that can be read 10)"
    remedy = "repair the corpus, or allow it with --max_rejected (now 0.1)"
    assert message_of(tmp_path / "out", words).endswith(f"rejected.tsv: {found}; {remedy}")
    assert prepare(tmp_path / "out", f"{words} --max_rejected 0.5") > 0
    for clip in clips[10:]:
        clip.write_text("no audio")
    assert message_of(tmp_path / "out", words).endswith("read 40); repair the corpus")


def test_too_few_clips_for_a_test_set(tmp_path: Path) -> None:
    words = write_release(tmp_path / "cv", num_clips=5)
    assert message_of(tmp_path / "out", words) == (
        "--test_fraction 0.1: no test clip, a language has at most 5 usable clips; "
        "give more clips, or at least --test_fraction 0.2"
    )
    assert prepare(tmp_path / "out", f"{words} --test_fraction 0.2") > 0
    words = write_release(tmp_path / "more", num_clips=10)
    assert prepare(tmp_path / "more-out", words) > 0


def test_tables_that_a_release_lacks(tmp_path: Path) -> None:
    corpus = tmp_path / "cv"
    words = write_release(corpus)
    assert message_of(tmp_path / "out", f"{words} --split released") == (
        f"{corpus / 'ca' / 'test.tsv'}: no such file; divide validated.tsv with --split paper"
    )
    assert prepare(tmp_path / "out", f"{words} --split paper") > 0
    durations = corpus / "ca" / "clip_durations.tsv"
    durations.write_text("x\ty\n")
    assert message_of(tmp_path / "out", words) == (
        f"{durations}:1: expected columns clip and duration[ms], found x, y; "
        "restore the file, or remove it: then the clips give their durations"
    )
    durations.unlink()
    assert prepare(tmp_path / "out", words) > 0


# ---- audio


def test_a_wrong_channel_in_a_list(tmp_path: Path) -> None:
    wav = str(write_audio(tmp_path / "a.wav", seconds=0.5))
    lists = {"train": [Utterance(key="a", wav=wav, txt="pa", channel=1)]}
    checked = check_lists(lists, config=ExperimentConfig())
    assert [*checked.findings][0] == "outside the audio"
    assert KINDS["outside the audio"] == "correct start, end or channel in the list"
    lists = {"train": [Utterance(key="a", wav=wav, txt="pa", channel=0)]}
    assert "outside the audio" not in check_lists(lists, config=ExperimentConfig()).findings


def test_audio_of_more_than_a_day_is_to_be_divided(tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, np.zeros(1000), 1000)
    content = bytearray(path.read_bytes())
    num_samples = 25 * 3600 * 1000
    content[22:26] = num_samples.to_bytes(4, "big")  # the last bytes of the number in STREAMINFO
    path.write_bytes(content)
    with pytest.raises(AudioError, match="25 hours of audio, more than 24; divide it into shorter"):
        read_audio(path)
    soundfile.write(path, np.full(1000, 0.1), 1000)
    assert len(read_audio(path)) == 16000
