# SPDX-License-Identifier: Apache-2.0
"""All settings of a recurrent language model: `LmConfig` and the sections in it."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from wenet_hs.config.optim import Metric
from wenet_hs.config.schema import TrainingConfig, sparse_grad_conflicts
from wenet_hs.config.section import BelowOne, Conflict, Count, Fraction, Section


class RnnConf(Section):
    """The recurrent network (`rnn`)."""

    embedding_size: Count = 256
    """Width of the vectors of the input units."""
    hidden_size: Count = 256
    """Width of the layers and of the head's input."""
    num_layers: Count = 1
    """Number of recurrent layers."""
    dropout_rate: BelowOne = 0.0
    """Dropout of the input vectors, between layers, and of the head's input."""
    sparse_grad: bool = False
    """Whether a step updates only the vectors of its input units; for very many units, with `optim:
    adam`.
    """


class NoiseUnitsConf(Section):
    """The noise units of `loss: nce` and `loss: blackout`, drawn once per batch."""

    num_samples: Count | None = None
    """Number of noise units per batch; null: a twentieth of the units."""
    power: Fraction = 0.4
    """blackout: the noise is proportional to the frequencies to this power. nce uses the
    frequencies.
    """


class TextConf(Section):
    """How the running text is divided into batches."""

    batch_size: Count = 20
    """Parts of the text that are read side by side."""
    num_steps: Count = 50
    """Units of each part per batch, and so of truncated back-propagation.

    The state is carried to the next batch.
    """
    reset_at_sentences: bool = False
    """Whether a part whose batch begins with a sentence starts it from the empty state, as
    recognition does.
    """
    keep_empty_lines: bool = False
    """Whether an empty line is a sentence without units, as in the WikiText benchmarks; false: it
    is left out.
    """


class LmConfig(TrainingConfig):
    """All settings of a language model. A section that is left out has its defaults."""

    tokenizer: Literal["char", "phone", "bpe", "word"] = "word"
    """What a unit is: a character, a phone or a word (text between spaces), or a piece of a
    sentencepiece model.
    """
    rnn: Literal["gru", "lstm"] = "gru"
    """Kind of recurrent layer."""
    rnn_conf: RnnConf = Field(default_factory=RnnConf)
    loss: Literal["exact", "nce", "blackout"] = "exact"
    """The loss in training: of the head, or estimated from noise units with `head: softmax`.

    Validation is exact.
    """
    sampling_conf: NoiseUnitsConf = Field(default_factory=NoiseUnitsConf)
    text_conf: TextConf = Field(default_factory=TextConf)

    trained_by: ClassVar[str] = "lm train"
    has_equal_epochs: ClassVar[bool] = True

    def conflicts(self) -> Iterator[Conflict]:
        """A loss that does not fit the head or its settings, and the conflicts of all trainings."""
        if self.loss != "exact" and self.head != "softmax":
            yield "loss", f"{self.loss} estimates a flat softmax; set head: softmax, or loss: exact"
        if self.loss == "exact" and self.sampling_conf.num_samples is not None:
            yield (
                "sampling_conf.num_samples",
                "has no effect with loss: exact; remove it, or set nce or blackout",
            )
        yield from sparse_grad_conflicts(
            self, section="rnn_conf", has_sparse_grad=self.rnn_conf.sparse_grad
        )
        yield from super().conflicts()

    def why_unmeasured(self, metric: Metric) -> str | None:
        """Why a validation of a language model does not measure a metric; None if it does."""
        if metric in ("loss", "bits_per_unit"):
            return None
        return f"a language model has no {metric}"
