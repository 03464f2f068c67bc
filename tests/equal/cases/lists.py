# SPDX-License-Identifier: Apache-2.0
"""`prepare`: lists, rejected.tsv, stats.json and printed lines of every form that is read."""

import gzip
import json
from pathlib import Path

from case_recorder import CaseRecorder
from made_annotations import (
    make_annotations,
    rows_of,
    write_delimited,
    write_elan,
    write_json_lines,
    write_kaldi,
    write_praat,
    write_recordings,
)
from made_audio import write_noise

USUAL = "--lang mdw --num_workers 0"
CLIP_S = 1.2
NUM_CLIPS = 24
WORDS = ("mo", "lu", "ke", "ba", "re", "ta", "pi")


def record_elan(case: CaseRecorder) -> None:
    """ELAN: tiers by name, type and participant, words of a subdivision, messages about tiers."""
    annotations = make_annotations()
    write_recordings(case.folder / "audio")
    write_elan(case.folder / "annotations", annotations)
    elan = f"prepare elan {USUAL} --corpus annotations --audio_dir audio"
    case.run("tiers", f"{elan} --tier utterance@* --out tiers")
    case.run("no-tier", f"{elan} --out no-tier", expected=2)
    case.run("unknown-tier", f"{elan} --tier utt --out unknown-tier", expected=2)
    case.run("type", f"{elan} --tier_type utt* --speaker_from file --out type")
    case.run("participant", f"{elan} --participant Beto --tier_type utterance --out participant")
    case.run("words", f"{elan} --tier word@* --split_by none --out words")
    case.run("joined", f"{elan} --tier utterance@* --join_intervals 0.5 --out joined")
    case.run("phones", f"{elan} --tier utterance@* --unit phone --out phones")
    case.run("as-written", f"{elan} --tier utterance@* --no_normalize --out as-written")
    case.run("apostrophe", f"{elan} --tier utterance@* --letter_apostrophe --out apostrophe")
    case.run("pauses", f"{elan} --tier utterance@* --pauses 'lu' --out pauses")
    case.run("no-overlaps", f"{elan} --tier utterance@* --drop_overlaps --out no-overlaps")
    case.run("speakers", f"{elan} --tier utterance@* --split_by speaker --out no", expected=2)
    case.run("shares", f"{elan} --tier utterance@* --dev_share 0.3 --test_share 0.2 --out shares")
    case.run("unread-audio", f"{elan} --tier utterance@* --check_audio none --out unread-audio")
    case.run("workers", f"{elan} --tier utterance@* --num_workers 2 --out workers")
    case.run("again", f"{elan} --tier utterance@* --out tiers")
    (case.folder / "tiers" / "exclude.txt").write_text("rec1-0000400-0001900\n", "utf-8")
    case.run("excluded", f"{elan} --tier utterance@* --out tiers")
    (case.folder / "audio" / "rec 2.wav").unlink()
    case.run("half-missing", f"{elan} --tier utterance@* --max_rejected 0.9 --out half-missing")
    case.run("too-many", f"{elan} --tier utterance@* --max_rejected 0.1 --out too-many", expected=2)


def record_praat(case: CaseRecorder) -> None:
    """Praat: tiers, speakers, joined intervals, and a TextGrid of a part of a recording."""
    annotations = make_annotations()
    corpus = case.folder / "annotations"
    write_recordings(corpus)
    write_praat(corpus, annotations)
    praat = f"prepare praat {USUAL} --corpus annotations"
    case.run("tiers", f"{praat} --tier * --speaker_from tier --out tiers")
    case.run("no-tier", f"{praat} --out no-tier", expected=2)
    case.run("one-tier", f"{praat} --tier Ana --out one-tier")
    case.run("joined", f"{praat} --tier * --join_intervals 1 --out joined")
    case.run("phones", f"{praat} --tier * --unit phone --split_by none --out phones")
    (corpus / "broken.TextGrid").write_text('File type = "ooTextFile"\nObject class = "Pitch 1"\n')
    case.run("broken-file", f"{praat} --tier * --speaker_from folder --out broken-file")


def record_kaldi(case: CaseRecorder) -> None:
    """Kaldi: a folder with segments, folders of sets, and commands in wav.scp."""
    annotations = make_annotations()
    write_recordings(case.folder / "audio")
    write_kaldi(case.folder / "data", annotations, audio=str(case.folder / "audio"))
    kaldi = f"prepare kaldi {USUAL}"
    case.run("segments", f"{kaldi} --corpus data --out segments")
    for number, name in enumerate(("train", "dev", "test")):
        third = annotations[number::3]
        write_kaldi(case.folder / "sets" / name, third, audio=str(case.folder / "audio"))
    case.run("sets", f"{kaldi} --corpus sets --out sets-out")
    case.run("ignored-sets", f"{kaldi} --corpus sets --ignore_sets --out ignored-sets")
    scp = case.folder / "data" / "wav.scp"
    audio = case.folder / "audio"
    scp.write_text(f"rec1 sox {audio}/rec1.wav -t wav - |\nrec_2 cat {audio}/x.wav |\n")
    case.run("commands", f"{kaldi} --corpus data --max_rejected 0.9 --out commands")
    (case.folder / "data" / "segments").unlink()
    case.run("no-segments", f"{kaldi} --corpus data --out no-segments", expected=2)


def record_tables(case: CaseRecorder) -> None:
    """Tables: CSV, TSV, JSON, other columns, without columns, compressed, manifests, Excel."""
    rows = rows_of(make_annotations())
    write_recordings(case.folder)
    table = f"prepare table {USUAL}"
    write_delimited(case.folder / "all.csv", rows, ",")
    write_delimited(case.folder / "all.tsv", rows, "\t")
    write_delimited(case.folder / "semicolons.csv", rows, ";")
    write_json_lines(case.folder / "all.jsonl", rows)
    whole = json.dumps(rows, ensure_ascii=False)
    (case.folder / "all.json").write_text(whole, "utf-8")
    (case.folder / "all.csv.gz").write_bytes(gzip.compress((case.folder / "all.csv").read_bytes()))
    (case.folder / "utf16.tsv").write_text((case.folder / "all.tsv").read_text("utf-8"), "utf-16")
    for name in (
        "all.csv",
        "all.tsv",
        "semicolons.csv",
        "all.jsonl",
        "all.json",
        "all.csv.gz",
        "utf16.tsv",
    ):
        case.run(name, f"{table} --table {name} --out out-{name}")
    _write_other_columns(case.folder / "other.csv", rows)
    case.run("other-columns", f"{table} --table other.csv --out other")
    columns = "--columns 'audio=File text=Words start=Begin_ms end=End_ms'"
    case.run("named-columns", f"{table} --table other.csv {columns} --out named")
    case.run("no-audio", f"{table} --table all.csv --audio_dir nowhere --out none", expected=2)
    (case.folder / "table.xlsx").write_bytes(b"PK\x03\x04" + bytes(40))
    case.run("excel", f"{table} --table table.xlsx --out excel", expected=2)
    _write_clips(case.folder / "clips")
    lines = [f"clips/clip{n:02d}.wav|{_sentence(n)}" for n in range(NUM_CLIPS)]
    (case.folder / "metadata.csv").write_text("\n".join(lines) + "\n", "utf-8")
    case.run("no-columns", f"{table} --table metadata.csv --out no-columns")
    lines = [
        f"clips/clip{n:02d}.wav :: b/ ({_sentence(n)})/({_sentence(n + 1)})"  # two spellings
        for n in range(NUM_CLIPS)
    ]
    (case.folder / "train.trn").write_text("\n".join(lines) + "\n", "utf-8")
    case.run("korean", f"{table} --table train.trn --out korean")
    _write_manifests(case.folder)
    case.run("nemo", f"{table} --table nemo.json --out nemo")
    case.run("lhotse", f"{table} --table supervisions.jsonl --out lhotse")


def record_folders(case: CaseRecorder) -> None:
    """Folders: a transcript beside each recording in every form that is read, and other layouts."""
    folder = f"prepare folder {USUAL}"
    for name, text in _texts_with_times().items():
        corpus = case.folder / name.replace(".", "-")
        suffix = name.partition(".")[2]
        for recording, word in (("a", "mo"), ("bb", "ta"), ("ccc", "pi")):
            write_noise(corpus / f"{recording}.wav", 12.0)
            spoken = text.replace("mo", word).replace(" m\n", f" {word[0]}\n")
            (corpus / f"{recording}.{suffix}").write_text(spoken, "utf-8")
        unit = "--unit phone" if suffix == "PHN" else ""
        line = f"{folder} --corpus {corpus.name} --text_suffix .{suffix} --split_by none {unit}"
        is_refused = name.startswith("unknown")
        case.run(name, f"{line} --out out/{corpus.name}", expected=2 if is_refused else 0)
    vtt = f"{folder} --corpus names-vtt --text_suffix .vtt --split_by none"
    case.run("kept-names", f"{vtt} --keep_names --out out/kept-names")
    case.run("taken-names", f"{vtt} --take_names --out out/taken-names")
    _write_text_beside_clips(case.folder / "plain")
    case.run("plain", f"{folder} --corpus plain --out out/plain")
    case.run("speakers", f"{folder} --corpus plain --speaker_from folder --out out/speakers")
    _write_transcripts_elsewhere(case.folder / "vctk")
    case.run("vctk", f"{folder} --corpus vctk --out out/vctk")
    _write_list_of_transcripts(case.folder / "librispeech")
    case.run("librispeech", f"{folder} --corpus librispeech --out out/librispeech")
    _write_audio_folder(case.folder / "audiofolder")
    case.run("audiofolder", f"{folder} --corpus audiofolder --out out/audiofolder")
    chat = case.folder / "chat"
    write_noise(chat / "a.wav", 12.0)
    (chat / "a.cha").write_text("@UTF8\n@Begin\n*SPA:\tmo lu .\n", "utf-8")
    case.run("chat", f"{folder} --corpus chat --text_suffix .cha --out out/chat", expected=2)


def record_releases(case: CaseRecorder) -> None:
    """Common Voice, the UCLA corpus, and simulated speech of sentences and of phones."""
    for lang in ("ca", "es"):
        _write_common_voice(case.folder / "cv" / lang, lang)
    common_voice = "prepare commonvoice --corpus cv --num_workers 0"
    case.run("commonvoice", f"{common_voice} --langs 'ca es' --ratio 0.5 --out cv-paper")
    hours = "--langs es --hours 0.005 --alpha 1"
    case.run("commonvoice-hours", f"{common_voice} {hours} --out cv-hours")
    released = f"{common_voice} --langs 'ca es' --split released --out cv-released"
    case.run("commonvoice-released", released, expected=2)
    for lang in ("abk", "xxa", "xxb"):
        _write_ucla(case.folder / "ucla" / lang, lang)
    ucla = "prepare ucla --corpus ucla --num_workers 0 --test_langs abk"
    case.run("ucla", f"{ucla} --out ucla-share")
    case.run("ucla-langs", f"{ucla} --dev_langs xxb --train_share 0.5 --out ucla-langs")
    sentences = case.folder / "sentences"
    sentences.mkdir()
    for lang, names in (("es", "casa perro gato lago"), ("it", "casa cane gatto lago")):
        words = names.split()
        pairs = [f"{first} {second}." for first in words for second in words]
        (sentences / f"{lang}.txt").write_text("\n".join(pairs) + "\n", "utf-8")
    synthetic = "prepare synthetic --num_workers 0 --hours 0.003"
    small = "--test_sentences 2 --dev_sentences 2"
    line = f"{synthetic} --langs 'es it' --sentences sentences {small} --out simulated"
    case.run("synthetic", line)
    case.run("synthetic-phones", f"{synthetic} --unit phone --langs 'es it' --out simulated-phones")


def _sentence(number: int) -> str:
    """A sentence of three words; the first numbers give different ones."""
    second = WORDS[(number // len(WORDS)) % len(WORDS)]
    third = WORDS[(3 * number + 1) % len(WORDS)]
    return f"{WORDS[number % len(WORDS)]} {second} {third}"


def _write_clips(folder: Path) -> None:
    for number in range(NUM_CLIPS):
        write_noise(folder / f"clip{number:02d}.wav", CLIP_S)


def _write_other_columns(path: Path, rows: list[dict[str, object]]) -> None:
    """The names of these columns are not usual, and the times are milliseconds."""
    others: list[dict[str, object]] = []
    for row in rows:
        start_s = row["start"]
        end_s = row["end"]
        assert isinstance(start_s, float)
        assert isinstance(end_s, float)
        other: dict[str, object] = {
            "File": row["path"],
            "Words": row["sentence"],
            "Begin_ms": round(1000 * start_s),
            "End_ms": round(1000 * end_s),
        }
        others.append(other)
    write_delimited(path, others, ",")


def _write_manifests(folder: Path) -> None:
    """Manifests of NeMo and of lhotse over the clips."""
    nemo: list[dict[str, object]] = []
    supervisions: list[dict[str, object]] = []
    recordings: list[dict[str, object]] = []
    for number in range(NUM_CLIPS):
        path = f"clips/clip{number:02d}.wav"
        text = _sentence(number)
        nemo.append({"audio_filepath": path, "duration": CLIP_S, "text": text})
        supervisions.append(
            {
                "id": f"s{number}",
                "recording_id": f"r{number}",
                "start": 0.1,
                "duration": 1.0,
                "channel": 0,
                "text": text,
                "language": "mdw",
                "speaker": f"p{number % 4}",
            }
        )
        source = {"type": "file", "channels": [0], "source": path}
        recordings.append({"id": f"r{number}", "sources": [source], "sampling_rate": 8000})
    write_json_lines(folder / "nemo.json", nemo)
    write_json_lines(folder / "supervisions.jsonl", supervisions)
    write_json_lines(folder / "recordings.jsonl", recordings)


def _texts_with_times() -> dict[str, str]:
    """Name of a step, whose suffix is that of the transcripts → a transcript with times."""
    srt = (
        "1\n00:00:00,250 --> 00:00:03,500\n<i>Mo lu</i>, ke\n\n"
        "2\n00:00:04,250 --> 00:00:06,500\nba\nmo\n\n3\n00:00:08,000 --> 00:00:09,250\nre 1984\n"
    )
    vtt = (
        "WEBVTT - made by hand\n\nNOTE no cue\n\n00:00.250 --> 00:03.500\n<v Ana>mo lu ke</v>\n\n"
        "00:04.250 --> 00:06.500\n<v Beto>ba mo\n\n00:08.000 --> 00:09.250\n<v Ana>re\n"
    )
    names = (
        "WEBVTT\n\n00:00.250 --> 00:03.500\nAna P: mo lu ke\n\n00:04.250 --> 00:06.500\n"
        "Beto: ba mo\n\n00:08.000 --> 00:09.250\nAna P: re\n\n"
        "00:10.000 --> 00:11.000\nBeto: ta mo\n"
    )
    sbv = "0:00:00.250,0:00:03.500\nmo lu\n\n0:00:04.250,0:00:06.500\nba mo\n"
    audacity = "0.250000\t3.500000\tMo lu, ke\n\\\t100.0\t4000.0\n4.25\t6.5\tba  mo\n7\t8\t\n"
    whisper = "start\tend\ttext\n250\t3500\tmo lu\n4250\t6500\tba mo\n"
    whisper_csv = 'start,end,text,speaker\n0.25,3.5,"mo, lu",Ana\n4.25,6.5,ba mo,Beto\n'
    whole = "mo lu ke\nba mo\n"
    return {
        "subtitles.srt": srt,
        "subtitles.vtt": vtt,
        "names.vtt": names,
        "subtitles.sbv": sbv,
        "audacity.txt": audacity,
        "whisper.tsv": whisper,
        "whisper.csv": whisper_csv,
        "timit.TXT": "0 190000 She mo lu ke.\n",
        "timit.WRD": "2000 9000 mo\n9000 16000 lu\n16000 96000 ke\n",
        "timit.PHN": "0 2000 h#\n2000 9000 m\n9000 16000 ow\n16000 30000 l\n30000 96000 h#\n",
        "text.lab": whole,
        "unknown-times.txt": "[00:00.25] mo lu\n[00:04.25] ba mo\n[00:08.00] re\n",
    }


def _write_text_beside_clips(folder: Path) -> None:
    """x.txt beside x.wav in two folders; one clip has no transcript, one transcript no clip."""
    for number in range(NUM_CLIPS):
        speaker = folder / f"s{number % 2}"
        write_noise(speaker / f"clip{number:02d}.wav", CLIP_S)
        if number != 5:
            (speaker / f"clip{number:02d}.txt").write_text(f"{_sentence(number)}.\n", "utf-8")
    (folder / "s0" / "clip99.txt").write_text("mo\n", "utf-8")


def _write_transcripts_elsewhere(folder: Path) -> None:
    """wav/SPEAKER/x.wav and txt/SPEAKER/x.txt, as VCTK has them."""
    for number in range(NUM_CLIPS):
        name = f"p{number % 3}_{number:03d}"
        write_noise(folder / "wav" / f"p{number % 3}" / f"{name}.wav", CLIP_S)
        text = folder / "txt" / f"p{number % 3}" / f"{name}.txt"
        text.parent.mkdir(parents=True, exist_ok=True)
        text.write_text(f"{_sentence(number)}\n", "utf-8")


def _write_list_of_transcripts(folder: Path) -> None:
    """`key transcript` lines beside the clips of each chapter, as LibriSpeech has them."""
    for chapter in ("19-1", "26-2"):
        lines = []
        for number in range(NUM_CLIPS // 2):
            key = f"{chapter}-{number:04d}"
            write_noise(folder / chapter.replace("-", "/") / f"{key}.flac", CLIP_S)
            lines.append(f"{key} {_sentence(number).upper()}")
        transcripts = folder / chapter.replace("-", "/") / f"{chapter}.trans.txt"
        transcripts.write_text("\n".join(lines) + "\n", "utf-8")


def _write_audio_folder(folder: Path) -> None:
    """metadata.csv in folders of sets, as Hugging Face has it."""
    for name, numbers in (
        ("train", range(16)),
        ("validation", range(16, 20)),
        ("test", range(20, 24)),
    ):
        rows: list[dict[str, object]] = []
        for number in numbers:
            write_noise(folder / name / f"clip{number:02d}.wav", CLIP_S)
            rows.append({"file_name": f"clip{number:02d}.wav", "transcription": _sentence(number)})
        write_delimited(folder / name / "metadata.csv", rows, ",")


def _write_common_voice(folder: Path, lang: str) -> None:
    """A release of one language: a table of validated clips, their durations, and the clips."""
    header = (
        "client_id",
        "path",
        "sentence",
        "up_votes",
        "down_votes",
        "age",
        "gender",
        "accents",
        "locale",
        "segment",
    )
    rows = ["\t".join(header)]
    durations = ["clip\tduration[ms]"]
    for number in range(60):
        name = f"common_voice_{lang}_{number:03d}.mp3"
        sentence = "" if number == 7 else f"{_sentence(number)} {WORDS[number % 5]}."
        values = {"client_id": f"s{number % 9}", "path": name, "sentence": sentence, "locale": lang}
        rows.append("\t".join(values.get(column, "") for column in header))
        seconds = 0.8 + 0.02 * number
        durations.append(f"{name}\t{round(1000 * seconds)}")
        if number != 11:
            write_noise(folder / "clips" / name, seconds)
    (folder / "validated.tsv").write_text("\n".join(rows) + "\n", "utf-8")
    (folder / "clip_durations.tsv").write_text("\n".join(durations) + "\n", "utf-8")


def _write_ucla(folder: Path, lang: str) -> None:
    """text.txt with phones, and the audio of all but one of its words."""
    phones = ("a", "t͡ʃ", "ʃʲ", "kʰ", "a\u0303", "d͡ʒ")
    lines = []
    for number in range(20):
        chosen = [phones[(number * step + step) % len(phones)] for step in (1, 2, 5)]
        lines.append(f"{lang}-{number:02d} {' '.join(chosen)}")
        if number != 3:
            write_noise(folder / "audio" / f"{lang}-{number:02d}.wav", 0.75)
    (folder / "text.txt").write_text("\n".join(lines) + "\n", "utf-8")
