# SPDX-License-Identifier: Apache-2.0
"""A small file of each known form of text files."""

XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
EXAMPLES = {
    "a transcript of CLAN (CHAT)": ("a.cha", "@UTF8\n@Begin\n*SPA:\tmo lu .\n"),
    "a file of ELAN": ("a.eaf", f'{XML}<ANNOTATION_DOCUMENT DATE="">'),
    "a TextGrid of Praat": (
        "a.TextGrid",
        'File type = "ooTextFile"\nObject class = "TextGrid"\n\nxmin = 0\n',
    ),
    "a Collection of Praat": (
        "a.Collection",
        'File type = "ooTextFile"\nObject class = "Collection"\n\nsize = 1\nitem []:\n  class = "TextGrid"\n',
    ),
    "a chronological TextGrid of Praat": (
        "a.TextGrid",
        '"Praat chronological TextGrid text file"\n0 2   ! Time domain\n',
    ),
    "an object of Praat that is no TextGrid": (
        "a.Pitch",
        'File type = "ooTextFile"\nObject class = "Pitch 1"\n',
    ),
    "a binary file of Praat": ("a.TextGrid", "ooBinaryFile\x08TextGrid"),
    "a transcript of EXMARaLDA": (
        "a.exb",
        f"{XML}<!-- (c) EXMARaLDA -->\n<basic-transcription><head/>",
    ),
    "a transcript of FOLKER": ("a.flk", f"{XML}<folker-transcription><head/>"),
    "a file of Transcriber": (
        "a.trs",
        f'{XML}<!DOCTYPE Trans SYSTEM "trans-14.dtd">\n<Trans scribe="x">',
    ),
    "a text of FLEx": ("a.flextext", f'{XML}<document version="2"><interlinear-text guid="x">'),
    "a file of Toolbox": ("a.txt", "\\id TEXTa\n\\ref a.1\n\\tx mo lu\nke\n\\ft One.\n"),
    "a session of Phon": (
        "a.xml",
        f'{XML}<session xmlns="http://phon.ling.mun.ca/ns/phonbank" id="x">',
    ),
    "a transcript of CLAN in XML (TalkBank)": (
        "a.xml",
        f'{XML}<CHAT xmlns="http://www.talkbank.org/ns/talkbank">',
    ),
    "a text of Pangloss": (
        "a.xml",
        f'{XML}<!DOCTYPE TEXT SYSTEM "Archive.dtd">\n<TEXT id="x"><S><AUDIO start="0" end="2"/><FORM>mo</FORM></S>',
    ),
    "a file of SPPAS": (
        "a.xra",
        f'{XML}<Document format="1.5"><Metadata/><Tier id="t" tiername="IPU">',
    ),
    "a file of Annotation Pro": (
        "a.antx",
        f'{XML}<AnnotationSystemDataSet xmlns="http://tempuri.org/x.xsd">',
    ),
    "a file of Anvil": ("a.anvil", f'{XML}<annotation><head><specification src="x"/></head>'),
    "a file of NXT": (
        "a.xml",
        f'{XML}<nite:root nite:id="x" xmlns:nite="http://nite.sourceforge.net/"><w nite:id="y">mo</w>',
    ),
    "a text of TEI": ("a.xml", f'{XML}<TEI xmlns="http://www.tei-c.org/ns/1.0">'),
    "a transcript of SALT": (
        "a.slt",
        "$ Child, Examiner\n+ Language: English\n- 0:00\nE mo lu ke?\nC ba.\n",
    ),
    "SubStation subtitles": ("a.ass", "[Script Info]\nTitle: x\n"),
    "SubViewer subtitles": (
        "a.sub",
        "[INFORMATION]\n[TITLE]x\n[SUBTITLE]\n\n00:00:01.50,00:00:03.10\nmo[br]lu\n",
    ),
    "MicroDVD subtitles, whose times are frames": ("a.sub", "{1}{1}25.000\n{10}{72}mo|lu\n"),
    "MPL2 subtitles": ("a.txt", "[10][35]mo lu\n"),
    "TTML subtitles": ("a.ttml", f'{XML}<tt xmlns="http://www.w3.org/ns/ttml"><body>'),
    "SAMI subtitles": ("a.smi", "<SAMI><HEAD><TITLE>x</TITLE>"),
    "captions of YouTube in XML": (
        "a.srv3",
        f'{XML}<timedtext format="3"><body><p t="250" d="3250">mo</p>',
    ),
    "WebVTT subtitles": ("a.vtt", "WEBVTT\n\n00:00.250 --> 00:03.500\nmo\n"),
    "SRT subtitles": ("a.srt", "1\n00:00:00,250 --> 00:00:03,500\nmo\n"),
    "SBV subtitles": ("a.sbv", "0:00:00.250,0:00:03.500\nmo\n"),
    "labels of Audacity": ("a.txt", "0.25\t3.5\tmo\n\\\t100.0\t4000.0\n4.25\t6.5\tlu\n"),
    "a table of the segments of one recording": ("a.tsv", "start\tend\ttext\n250\t3500\tmo\n"),
    "an RTTM of NIST, which has no text": (
        "a.rttm",
        ";; x\n\nSPEAKER rec 1 0 3.25 <NA> <NA> spk <NA> <NA>\n",
    ),
    "a CTM of NIST": ("a.ctm", ";; x\n\nrec 1 0 0.30 mo\nrec 1 .40 .30 lu 0.9\n"),
    "an STM of NIST": ("a.stm", ";; x\n\nrec 1 spk 0 1 mo lu\nrec 1 spk 1 2 <o,f0> ke\n"),
    "a Master Label File of HTK": ("a.mlf", '#!MLF!#\n"*/a.lab"\n0 3000000 sil\n.\n'),
    "labels of HTK, whose times are units of 100 ns": (
        "a.lab",
        "0 3000000 sil\n3000000 9000000 a\n",
    ),
    "labels of ESPS (xwaves, WaveSurfer)": (
        "a.lab",
        "signal a\nnfields 1\n#\n    0.250000  121 mo\n",
    ),
    "a list of audio files, such as wav.scp of Kaldi": (
        "wav.scp",
        "a1 wav/a1.wav\na2 sph2pipe -f wav a2.sph |\n",
    ),
    "a file `segments` of Kaldi": ("segments", "a1 rec 0.25 3.5\na2 rec 4.25 6.5\n"),
    "JSON with a list of segments per recording, as of Whisper, GigaSpeech or WenetSpeech": (
        "a.json",
        '{"text": "mo", "segments": [{"start": 0.25, "end": 3.5, "text": "mo"}]}',
    ),
    "JSON": ("a.json", '{"text": "mo"}'),
    "XML or HTML": ("a.html", "<html><body>mo</body></html>"),
    "RTF": ("a.rtf", "{\\rtf1\\ansi mo}"),
}
"""Name of a form → a file of it."""
