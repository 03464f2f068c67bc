# SPDX-License-Identifier: Apache-2.0
"""Byte-pair encoding by sentencepiece: train a model on transcripts, load one, and list its pieces."""

import io
import re
from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from wenet_hs.errors import ConfigError, DataError

_QUIET = 2  # sentencepiece's own log: errors only


def train_bpe(transcripts: Iterable[str], vocab_size: int) -> bytes:
    """A sentencepiece model of `vocab_size` pieces, deterministic; the text is taken as it is (no NFKC).

    Raises ConfigError when the transcripts do not allow that many pieces, or need more.
    """
    if vocab_size < 1:
        raise ConfigError(f"--vocab_size {vocab_size}: must be above 0")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(transcripts),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=1.0,
            normalization_rule_name="identity",
            num_threads=1,
            minloglevel=_QUIET,
        )
    except RuntimeError as error:
        raise ConfigError(f"--vocab_size {vocab_size}: {_explain(str(error))}") from error
    return model.getvalue()


def load_bpe_model(path: Path | str) -> sentencepiece.SentencePieceProcessor:
    """A sentencepiece model. Raises DataError when the file is missing or something else."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path of the BPE model") from error
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except (RuntimeError, TypeError) as error:
        raise DataError(f"{path}: not a sentencepiece model; make it with `wenet-hs units --kind bpe`") from error


def bpe_units(model: bytes) -> list[str]:
    """The pieces of a model that stand for text."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = range(processor.get_piece_size())
    return [processor.id_to_piece(n) for n in pieces if not (processor.is_control(n) or processor.is_unknown(n))]


def _explain(message: str) -> str:
    """What sentencepiece says about the size, without its source lines."""
    if found := re.search(r"set it to a value <= (\d+)", message):
        return f"the transcripts give at most {found[1]} pieces; ask for at most that"
    if found := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
        return f"the characters of the transcripts alone need {found[1]}; ask for at least that"
    return message
