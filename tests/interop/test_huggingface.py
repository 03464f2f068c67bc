# SPDX-License-Identifier: Apache-2.0
"""Fine-tuned models of transformers as model folders: their log-probabilities and texts, units,
languages, mistakes.
"""

import json
import shlex
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Capsys, error_line, run_line
from safetensors.torch import load_file, save_file
from tiny_corpus import write_tiny_corpus
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

transformers = pytest.importorskip("transformers")
from pretrained_folders import CONFIGS  # noqa: E402  # after importorskip

from wenet_hs.bin import align, recognize, train, transcribe  # noqa: E402
from wenet_hs.bin.main import run_command  # noqa: E402
from wenet_hs.config.load import load_config  # noqa: E402
from wenet_hs.decode.modes import decode  # noqa: E402
from wenet_hs.model.experiment import Experiment, load_experiment  # noqa: E402
from wenet_hs.text.units import UnitTable  # noqa: E402
from wenet_hs.tree.errors import CheckpointError  # noqa: E402

transformers.utils.logging.disable_progress_bar()
IMPORT = import_module("wenet_hs.bin.import")
ARPA = "\\data\\\nngram 1=5\n\n\\1-grams:\n-1\t<s>\n-1\t</s>\n-1\ta\n-1\tb\n-1\t▁\n\n\\end\\\n"
LETTERS = ["[PAD]", "a", "b", "|", "c", "[UNK]", "d", "e"]
XLS_R = {"pad_token": "[PAD]", "unk_token": "[UNK]", "word_delimiter_token": "|"}
"""As the tokenizers of fine-tuned XLS-R models are written."""
CTC_KINDS = [name for name in CONFIGS if name not in ("mms", "whisper")]


def write_model(
    folder: Path, name: str, tokens: list[str], settings: Mapping[str, Any] = XLS_R, **changes: Any
) -> torch.nn.Module:
    """A folder as transformers writes it, of a model with random weights, and a tokenizer with
    these tokens.
    """
    torch.manual_seed(0)
    config = {**CONFIGS[name], "vocab_size": len(tokens), "pad_token_id": 0, **changes}
    model = transformers.AutoModelForCTC.from_config(
        transformers.AutoConfig.for_model(**config)
    ).eval()
    for value in model.parameters():
        value.data += 0.1 * torch.randn(value.shape)
    model.lm_head.weight.data *= 3.0  # so that the best unit changes from frame to frame
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(
        json.dumps({token: number for number, token in enumerate(tokens)})
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "preprocessor_config.json").write_text(json.dumps({"do_normalize": True}))
    return model


def run_import(folder: Path, out: Path, more: str = "") -> int:
    return run_command(IMPORT, ["--hf", str(folder), "--out", str(out), *shlex.split(more)])


def imported(folder: Path, more: str = "") -> Experiment:
    assert run_import(folder, folder / "ours", more) == 0
    return load_experiment(folder / "ours")


def waves() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [0.1 * torch.randn(number, generator=generator) for number in (9600, 5280)]


@torch.no_grad()
def their_log_probs(model: Any, name: str, clip: Tensor, **settings: bool) -> Tensor:
    of_bert = name.startswith("w2v-bert")
    make = (
        transformers.SeamlessM4TFeatureExtractor
        if of_bert
        else transformers.Wav2Vec2FeatureExtractor
    )
    inputs = make(**settings)(
        clip.numpy(), sampling_rate=16000, return_tensors="pt", pad_to_multiple_of=None
    )
    inputs = inputs.input_features if of_bert else inputs.input_values
    return model(inputs).logits[0].log_softmax(-1)


@torch.no_grad()
def our_log_probs(experiment: Experiment) -> list[Tensor]:
    inputs = [experiment.frontend.compute(clip) for clip in waves()]
    memory, lengths, _ = experiment.model.encoder(
        pad_sequence(inputs, batch_first=True), torch.tensor([*map(len, inputs)])
    )
    rows = zip(experiment.model.ctc.log_probs(memory), lengths, strict=True)
    return [log_probs[:length] for log_probs, length in rows]


@pytest.mark.parametrize("name", CTC_KINDS)
def test_the_log_probabilities_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = write_model(tmp_path, name, LETTERS)
    for clip, found in zip(waves(), our_log_probs(imported(tmp_path)), strict=True):
        assert found.size(1) == len(LETTERS) + 1 and bool((found[:, -1] < -1000).all())
        expected = their_log_probs(model, name, clip)
        assert expected.shape[0] == len(found)
        assert torch.allclose(found[:, :-1], expected, atol=1e-4)


@pytest.mark.parametrize("is_lower", [False, True])
def test_texts_are_those_of_the_processor(is_lower: bool, tmp_path: Path) -> None:
    """Its files, those of the tokenizer included, are written by transformers."""
    tokens = ["<pad>", "<s>", "</s>", "<unk>", "|", "A", "B", "É", "'", "O"]
    model = write_model(tmp_path, "wav2vec2", tokens)
    (tmp_path / "preprocessor_config.json").unlink()
    tokenizer = transformers.Wav2Vec2CTCTokenizer(tmp_path / "vocab.json", do_lower_case=is_lower)
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=False)
    transformers.Wav2Vec2Processor(extractor, tokenizer).save_pretrained(tmp_path)
    mean = their_log_probs(model, "wav2vec2", waves()[0], do_normalize=False).mean(0)
    model.lm_head.bias.data -= mean + torch.tensor(
        [0.0, 99.0, 99.0, 99.0, *[0.0] * 6]
    )  # no `<s>`: it would be text
    model.half().save_pretrained(tmp_path)
    experiment = imported(tmp_path)
    units = experiment.tokenizer.table.units
    assert units[:5] == ("<blank>", "<sos>", "<eos>", "<unk>", "▁") and units[7] == (
        "é" if is_lower else "É"
    )
    for clip, log_probs in zip(waves(), our_log_probs(experiment), strict=True):
        expected = their_log_probs(model.float(), "wav2vec2", clip, do_normalize=False)
        assert torch.allclose(log_probs, expected, atol=1e-4)
        inputs = experiment.frontend.compute(clip)[None]
        found = decode(
            experiment.model, inputs, torch.tensor([inputs.size(1)]), ["ctc_greedy_search"]
        )
        text = experiment.tokenizer.decode(found["ctc_greedy_search"][0][0].ids)
        assert text == tokenizer.decode(expected.argmax(-1)) and " " in text


def table_of(folder: Path, tokens: list[str], settings: Mapping[str, Any]) -> tuple[UnitTable, str]:
    write_model(folder, "wav2vec2", tokens, settings)
    experiment = imported(folder)
    return experiment.tokenizer.table, experiment.config.tokenizer


def test_which_units_are_phones(tmp_path: Path, capsys: Capsys) -> None:
    ipa = ["<pad>", "<s>", "</s>", "<unk>", "t͡ʃ", "aː", "|"]
    table, tokenizer = table_of(
        tmp_path / "phonemes", ipa, {"tokenizer_class": "Wav2Vec2PhonemeCTCTokenizer"}
    )
    assert (table.units[4:], tokenizer) == (("t͡ʃ", "aː", "|"), "phone")
    table, tokenizer = table_of(tmp_path / "no-delimiter", ipa[:-1], {"word_delimiter_token": None})
    assert (table.units[4:], tokenizer) == (("t͡ʃ", "aː"), "phone")
    assert capsys.readouterr().out.endswith("ours: 6 units, phones\n")
    table, tokenizer = table_of(tmp_path / "words", ipa, {})
    assert (table.units[4:], tokenizer) == (("t͡ʃ", "aː", "▁"), "char")
    table, tokenizer = table_of(tmp_path / "letters", ["<pad>", "<s>", "你", "好", "<noise>"], {})
    assert (table.units, tokenizer) == (("<blank>", "<sos/eos>", "你", "好", "<noise>"), "char")
    table_of(tmp_path / "capitals", ["<pad>", "A", "'", "|"], {})
    assert (
        "5 units, characters\nin upper case, as transcripts for `align` and"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("text", ["tsangtsa", "at sa tan", "ʈʰaʈts", "æ̃æ", "ngggn"])
def test_transcripts_have_the_units_of_transformers(text: str, tmp_path: Path) -> None:
    """Units of several letters are the longest at each position.

    Transformers drops spaces beside them, we do not.
    """
    tokens = ["[PAD]", "[UNK]", "|", "t", "s", "ts", "a", "n", "g", "ng", "ʈʰ", "ʈ", "æ̃", "æ"]
    write_model(tmp_path, "wav2vec2", tokens)
    experiment = imported(tmp_path)
    theirs = transformers.Wav2Vec2CTCTokenizer(tmp_path / "vocab.json", **XLS_R)
    assert experiment.tokenizer.encode(text) == theirs(text).input_ids
    assert experiment.tokenizer.decode(experiment.tokenizer.encode(text)) == text


def test_tokens_that_were_added_to_the_vocabulary(tmp_path: Path) -> None:
    write_model(tmp_path, "xls-r", [*"ab|", "[UNK]", "[PAD]", "<s>", "</s>"], pad_token_id=4)
    (tmp_path / "vocab.json").write_text(
        json.dumps({token: i for i, token in enumerate([*"ab|", "[UNK]", "[PAD]"])})
    )
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<s>": 5, "</s>": 6, "<beyond>": 7}))
    table = imported(tmp_path).tokenizer.table
    assert (
        table.units == ("a", "b", "▁", "<unk>", "<blank>", "<sos>", "<eos>")
        and table.special.blank == 4
    )
    (tmp_path / "added_tokens.json").unlink()
    section = {"5": {"content": "<s>", "special": True}, "6": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({**XLS_R, "added_tokens_decoder": section})
    )
    assert run_import(tmp_path, tmp_path / "again") == 0
    assert (tmp_path / "again/units.txt").read_bytes() == (tmp_path / "ours/units.txt").read_bytes()


@pytest.fixture
def mms(tmp_path: Path) -> Path:
    """A folder with the adapters of two languages, with vocabularies of two sizes."""
    write_model(tmp_path, "mms", ["<pad>", "<s>", "</s>", "<unk>", "|", "x"], {})
    vocabularies = {
        "mdw": ["<pad>", "<s>", "</s>", "<unk>", "|", *"lmn"],
        "fra": ["<pad>", "<s>", "</s>", "<unk>", "é"],
    }
    base = load_file(tmp_path / "model.safetensors")
    for seed, (lang, tokens) in enumerate(vocabularies.items(), start=1):
        torch.manual_seed(seed)
        adapter = {
            name: torch.randn(value.shape)
            for name, value in base.items()
            if ".adapter_layer." in name
        }
        adapter |= {
            "lm_head.weight": torch.randn(len(tokens), 16),
            "lm_head.bias": torch.randn(len(tokens)),
        }
        save_file(adapter, tmp_path / f"adapter.{lang}.safetensors")
    nested = {
        lang: {token: i for i, token in enumerate(tokens)} for lang, tokens in vocabularies.items()
    }
    (tmp_path / "vocab.json").write_text(json.dumps({**nested, "zul": nested["fra"]}))
    return tmp_path


@pytest.mark.parametrize("lang", ["mdw", "fra"])
def test_mms_has_the_adapters_and_the_output_layer_of_the_language(mms: Path, lang: str) -> None:
    experiment = imported(mms, f"--lang {lang}")
    units = json.loads((mms / "vocab.json").read_text())[lang]
    assert experiment.config.encoder_conf.adapter == lang  # type: ignore[union-attr]
    model = transformers.Wav2Vec2ForCTC.from_pretrained(
        mms, target_lang=lang, ignore_mismatched_sizes=True
    ).eval()
    for clip, found in zip(waves(), our_log_probs(experiment), strict=True):
        assert found.size(1) == len(units)
        assert torch.allclose(found, their_log_probs(model, "mms", clip), atol=1e-4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "has parts for languages: fra, mdw; name the language with --lang"),
        ("--lang zul", "has no adapter and vocabulary of this language; use one of fra, mdw"),
        ("--lang eng", "has no adapter and vocabulary of this language; use one of fra, mdw"),
    ],
)
def test_the_language_of_mms_is_never_another_one(
    mms: Path, flags: str, message: str, capsys: Capsys
) -> None:
    assert error_line(run_import(mms, mms / "ours", flags), capsys).endswith(message)


def test_a_fine_tuned_mms_without_adapter_files(mms: Path, capsys: Capsys) -> None:
    for path in mms.glob("adapter.*"):
        path.unlink()
    line = error_line(run_import(mms, mms / "ours", "--lang mdw"), capsys)
    assert line.endswith(
        "has no adapter and vocabulary of this language; download adapter.mdw.safetensors"
    )
    (mms / "vocab.json").write_text(
        json.dumps({t: i for i, t in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", "x"])})
    )
    line = error_line(run_import(mms, mms / "ours"), capsys)
    assert line.endswith(
        "has parts for languages: one that is not named; name the language with --lang"
    )
    model = transformers.Wav2Vec2ForCTC.from_pretrained(mms).eval()
    found = our_log_probs(imported(mms, "--lang mdw"))[0]
    assert torch.allclose(found, their_log_probs(model, "mms", waves()[0]), atol=1e-4)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", None, "has no config.json; give a folder in Hugging Face's layout"),
        (
            "vocab.json",
            None,
            "vocab.json: cannot be read (No such file or directory); only models with this file can",
        ),
        (
            "vocab.json",
            {"e": 8},
            "vocab.json: 8 tokens with ids to 8, but lm_head has 8 rows; take",
        ),
        (
            "vocab.json",
            {"a": 4},
            "vocab.json: 7 tokens with ids to 7, but lm_head has 8 rows; take",
        ),
        (
            "tokenizer_config.json",
            {"pad_token": "<pad>"},
            "config.json: pad_token_id is 0, but the tokenizer's pad token '<pad>' has no id; set",
        ),
        ("vocab.json", {"<unk>": 1, "▁": 2, "a": 99}, "vocab.json: 9 tokens with ids to 99, but"),
        (
            "config.json",
            {"pad_token_id": 1},
            "config.json: pad_token_id is 1, but the tokenizer's pad token '[PAD]' has",
        ),
        (
            "config.json",
            CONFIGS["whisper"],
            "is Whisper, whose decoder is not used here; train CTC on its encoder",
        ),
        (
            "config.json",
            {"mask_time_prob": 1.0},
            "config.json: mask_time_prob or mask_feature_prob: encoder_conf",
        ),
        (
            "config.json",
            {"mask_time_prob": None},
            "config.json: mask_time_prob or mask_feature_prob: encoder_conf",
        ),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"x": "<s>"}},
            "its added_tokens_decoder is damaged",
        ),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": ["<s>"]},
            "its added_tokens_decoder is damaged",
        ),
        (
            "config.json",
            {"model_type": "bert"},
            "config.json: model_type 'bert' is not supported; use one of wav2vec2",
        ),
    ],
)
def test_folders_that_do_not_fit(
    file: str, change: dict[str, Any] | None, message: str, tmp_path: Path, capsys: Capsys
) -> None:
    write_model(tmp_path, "hubert", LETTERS)
    content = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps({**content, **(change or {})}))
    if change is None:
        (tmp_path / file).unlink()
    assert message in error_line(run_import(tmp_path, tmp_path / "ours"), capsys)
    assert not (tmp_path / "ours").exists()


def test_a_failure_leaves_nothing_and_the_same_command_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    write_model(tmp_path, "xls-r", LETTERS)

    def fail(path: Path, *_: object, **__: object) -> None:
        raise CheckpointError(path, "disk full", "free some space")

    with monkeypatch.context() as patch:
        patch.setattr("wenet_hs.interop.huggingface.write_final", fail)
        assert "final.pt: disk full; free some space" in error_line(
            run_import(tmp_path, tmp_path / "ours"), capsys
        )
    assert [*(tmp_path / "ours").iterdir()] == []
    assert run_import(tmp_path, tmp_path / "ours") == 0
    names = {"encoder.json", "final.json", "final.pt", "run.json", "train.yaml", "units.txt"}
    assert {path.name for path in (tmp_path / "ours").iterdir()} == names


@pytest.mark.parametrize("has_decoder", [False, True])
def test_which_of_the_tokenizer_files_counts(
    has_decoder: bool, tmp_path: Path, capsys: Capsys
) -> None:
    """As in transformers: the map, but the config if it describes the added tokens."""
    settings = {**XLS_R, "pad_token": "<pad>"} | (
        {"added_tokens_decoder": {}} if has_decoder else {}
    )
    write_model(tmp_path, "xls-r", LETTERS, settings)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "[PAD]"}))
    code = run_import(tmp_path, tmp_path / "ours")
    assert (code == 2) is has_decoder and (
        "pad token '<pad>'" in capsys.readouterr().err
    ) is has_decoder


def test_begin_and_end_may_be_the_word_delimiter(tmp_path: Path) -> None:
    write_model(tmp_path, "xls-r", LETTERS, {**XLS_R, "bos_token": "|", "eos_token": "|"})
    assert imported(tmp_path).tokenizer.table.units[3:] == (
        "▁",
        "c",
        "<unk>",
        "d",
        "e",
        "<sos/eos>",
    )


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("encoder.layers.1.adapter_layer.", "has no encoder.layers.1.adapter_layer."),
        ("lm_head.", "has no output layer (lm_head); download it again"),
    ],
)
def test_an_incomplete_adapter_is_named(
    mms: Path, left_out: str, message: str, capsys: Capsys
) -> None:
    path = mms / "adapter.mdw.safetensors"
    save_file(
        {name: value for name, value in load_file(path).items() if left_out not in name}, path
    )
    assert f"adapter.mdw.safetensors: {message}" in error_line(
        run_import(mms, mms / "ours", "--lang mdw"), capsys
    )


def test_other_mistakes(tmp_path: Path, capsys: Capsys) -> None:
    write_model(tmp_path, "wavlm", LETTERS[:-1] + ["▁"])
    line = error_line(run_import(tmp_path, tmp_path / "ours"), capsys)
    assert line.endswith(
        "vocab.json: two units are equal after NFC: '▁'; write another token there: only its id matters"
    )
    line = error_line(run_import(tmp_path, tmp_path / "ours", "--lang mdw"), capsys)
    assert line.endswith("--lang mdw: this model has no parts for languages; leave it out")
    write_model(tmp_path, "wavlm", ["[PAD]", "a", "A"], {**XLS_R, "do_lower_case": True})
    line = error_line(run_import(tmp_path, tmp_path / "ours"), capsys)
    assert (
        "two units are equal after NFC: 'a' in lower case (do_lower_case of tokenizer_config.json); write"
        in line
    )
    write_model(tmp_path, "wavlm", LETTERS)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"lm_head.weight": torch.zeros(8, 5)}, tmp_path / "model.safetensors")
    line = error_line(run_import(tmp_path, tmp_path / "ours"), capsys)
    assert (
        "lm_head.weight (8, 5) and lm_head.bias (8,), expected (V, 16) and (V,); config.json and"
        in line
    )
    assert not (tmp_path / "ours").exists()
    save_file(
        {name: v for name, v in weights.items() if "lm_head" not in name},
        tmp_path / "model.safetensors",
    )
    line = error_line(run_import(tmp_path, tmp_path / "ours"), capsys)
    assert (
        "has no output layer of CTC (lm_head); take a model that was fine-tuned with CTC, or train with"
        in line
    )
    (tmp_path / "ours").mkdir()
    for name in ("units.txt", "train.yaml"):
        (tmp_path / "ours" / name).write_text("{}")
        line = error_line(run_import(tmp_path, tmp_path / "ours"), capsys)
        assert line.endswith(f"has a {name} already; name another folder")


@pytest.mark.slow
def test_every_command_reads_the_folder(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus", num_train=3, num_cv=1)
    write_model(tmp_path / "hf", "xls-r", LETTERS)
    model, lists = imported(tmp_path / "hf").model_dir, f"{corpus.cv_data} --device cpu"
    clip = corpus.folder / "clips/cv0.wav"
    assert run_line(transcribe, f"--model_dir {model} --device cpu {clip} --elan {tmp_path}") == 0
    assert (tmp_path / "cv0.eaf").exists()
    (tmp_path / "lm.arpa").write_text(ARPA)
    line = f"--model_dir {model} --test_data {lists} --result_dir {tmp_path}/test --lm {tmp_path}/lm.arpa"
    assert run_line(recognize, f"{line} --lm_weight 0.3 --modes ctc_prefix_beam_search") == 0
    assert run_line(align, f"--model_dir {model} --data_list {lists} --out {tmp_path}/a.jsonl") == 0
    assert json.loads((tmp_path / "a.jsonl").read_text())["text"] in "".join(
        corpus.cv_data.read_text()
    )
    line = f"--config {model}/train.yaml --checkpoint {model} --train_data {corpus.train_data} --cv_data {lists}"
    line += (
        f" --model_dir {tmp_path}/t --units {corpus.folder}/units.txt --override_config max_epoch=1"
    )
    more = (
        "decoder=transformer 'decoder_conf={attention_heads: 2, linear_units: 24, num_blocks: 1}'"
    )
    assert (
        run_line(train, f"{line} {more} model_conf.ctc_weight=0.3 encoder_conf.mask_time=0.0") == 0
    )
    report = json.loads((tmp_path / "t/fine_tune.json").read_text())
    assert (report["units_kept"], report["units_new"], report["units_dropped"]) == (8, [], ["▁"])
    assert all(name.startswith(("decoder.", "head.")) for name in report["parameters_new"])
    line = line.replace(f"{tmp_path}/t", f"{tmp_path}/u") + " encoder_conf.mask_time=0.1"
    assert run_line(train, line.replace(f"--checkpoint {model}", f"--checkpoint {tmp_path}/t")) == 0


def test_the_settings_are_those_for_training_further(tmp_path: Path) -> None:
    write_model(tmp_path, "wav2vec2", LETTERS, mask_time_prob=0.1, mask_feature_prob=0.02)
    imported(tmp_path)
    config = load_config(tmp_path / "ours/train.yaml")
    conf: Any = config.encoder_conf
    assert (conf.freeze, conf.mask_time, conf.mask_feature, config.decoder) == (
        "feature_encoder",
        0.1,
        0.02,
        "none",
    )
    facts = json.loads((tmp_path / "ours/final.json").read_text())
    assert (facts["by"], facts["checkpoints"]) == ("import", [])
