# SPDX-License-Identifier: Apache-2.0
"""WeNet's flags of `train`, `recognize`, `average` and `cmvn`, read as ours or refused.

docs/from-wenet.md explains them. Flags with our name and meaning are not listed.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wenet_hs.tree.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WenetFlags:
    """Flags of WeNet that mean the same."""

    names: tuple[str, ...]
    has_value: bool = True
    """Whether a value follows; otherwise the flag is a switch."""


@dataclass(frozen=True)
class Replaced(WenetFlags):
    """Flags that are read as arguments of ours."""

    ours: str = ""
    """The arguments, separated by spaces; {} is the value, {parent} the folder of this path."""


@dataclass(frozen=True)
class WithoutEffect(WenetFlags):
    """Flags that are ignored, and logged with the reason."""

    reason: str = ""


@dataclass(frozen=True)
class Refused(WenetFlags):
    """Flags that stop the command, because it would do something else than WeNet."""

    to_do: str = ""
    """Why the flag cannot be read, or what to do instead."""
    harmless: tuple[str, ...] = ()
    """Values that change nothing, and are ignored."""


ADAPTERS = Refused(
    ("--use_lora", "--only_optimize_lora"),
    to_do="adapters are not implemented; `freeze` trains a part of a model",
)
NON_LANG_SYMS = Refused(
    ("--non_lang_syms",),
    to_do="with it WeNet converts all text to upper case; write such symbols in units.txt",
)

FLAGS_OF_TRAIN: tuple[WenetFlags, ...] = (
    Replaced(("--symbol_table", "--dict"), ours="--units {}"),
    Replaced(("--num_workers",), ours="--override_config num_workers={}"),
    Replaced(("--dtype",), ours="--override_config dtype={}"),
    Replaced(("--gpu",), ours="--device cuda:{}"),
    Replaced(("--use_amp",), has_value=False, ours="--override_config dtype=fp16"),
    Replaced(("--freeze_modules",), ours="--override_config freeze=[{}]"),
    WithoutEffect(("--tensorboard_dir",), reason="TensorBoard's files are in MODEL_DIR"),
    WithoutEffect(("--prefetch",), reason="batches are always loaded ahead"),
    WithoutEffect(
        ("--pin_memory",), has_value=False, reason="batches are copied while the device computes"
    ),
    WithoutEffect(
        ("--ddp.dist_backend", "--dist_backend"),
        reason="chosen by --device: nccl for cuda, gloo for cpu",
    ),
    WithoutEffect(
        ("--ddp.init_method", "--ddp.rank", "--ddp.world_size", "--local_rank"),
        reason="torchrun sets it",
    ),
    WithoutEffect(("--timeout",), reason="WENET_HS_RANK_TIMEOUT_S sets it"),
    WithoutEffect(("--deepspeed_config", "--deepspeed.save_states"), reason="only for deepspeed"),
    WithoutEffect(
        ("--fp16_grad_sync",), has_value=False, reason="gradients are averaged in float32"
    ),
    WithoutEffect(
        ("--print_model",), has_value=False, reason="the log has the number of parameters"
    ),
    Refused(
        ("--train_engine",),
        to_do="DeepSpeed and FSDP are not implemented; leave it out",
        harmless=("torch_ddp",),
    ),
    Refused(("--deepspeed", "--jit"), has_value=False, to_do="not implemented; leave it out"),
    Refused(
        ("--enc_init", "--enc_init_mods"),
        to_do="give --checkpoint: it copies all weights that fit",
    ),
    Refused(("--lfmmi_dir",), to_do="LF-MMI is not implemented; leave it out", harmless=("",)),
    ADAPTERS,
    NON_LANG_SYMS,
)
FLAGS_OF_CMVN: tuple[WenetFlags, ...] = (
    Replaced(("--train_config",), ours="--config {}"),
    Replaced(("--out_cmvn",), ours="--out {}"),
    WithoutEffect(("--log_interval",), reason="nothing is logged between"),
    Refused(
        ("--in_scp",),
        to_do="give --data_list: the training list that `wenet-hs prepare kaldi` makes of it",
    ),
)
FLAGS_OF_RECOGNIZE: tuple[WenetFlags, ...] = (
    Replaced(("--config",), ours="--model_dir {parent}"),
    Replaced(("--mode",), ours="--modes {}"),
    Replaced(("--gpu",), ours="--device cuda:{}"),
    WithoutEffect(
        ("--dict", "--symbol_table", "--bpe_model", "--cmvn"),
        reason="those of the model folder are used, or the unit table that its train.yaml names",
    ),
    WithoutEffect(("--connect_symbol",), reason="units are joined as in the training data"),
    WithoutEffect(("--num_workers", "--prefetch"), reason="clips are loaded ahead"),
    Refused(("--result_file",), to_do="give --result_dir DIR: the text is in DIR/<mode>/text"),
    Refused(("--penalty",), to_do="give --length_penalty", harmless=("0", "0.0")),
    Refused(("--blank_penalty",), to_do="not implemented; leave it out", harmless=("0", "0.0")),
    Refused(("--override_config",), to_do="decoding reads MODEL_DIR/train.yaml; change it there"),
    Refused(("--hlg", "--word"), to_do="give an n-gram model over words: --lm FILE.arpa"),
    Refused(
        ("--context_list_path",),
        to_do="lists of words are not implemented; --lm takes a model of such text",
    ),
    Refused(
        ("--search_transducer_weight", "--transducer_weight"),
        to_do="transducers are not implemented",
    ),
    ADAPTERS,
    NON_LANG_SYMS,
)
FLAGS_OF_AVERAGE: tuple[WenetFlags, ...] = (
    Replaced(("--src_path",), ours="--model_dir {}"),
    Replaced(("--val_best",), has_value=False, ours="--by cv_loss"),
    WithoutEffect(("--mode",), reason="every saved checkpoint counts once"),
    Refused(
        ("--min_epoch", "--min_step"),
        to_do="give --num N: the N best or last",
        harmless=("0",),  # WeNet's default
    ),
    Refused(
        ("--max_epoch", "--max_step"),
        to_do="give --num N: the N best or last",
        harmless=("65536",),  # WeNet's default
    ),
)


def _by_name(all_flags: Sequence[WenetFlags]) -> dict[str, WenetFlags]:
    """The flags by each of their names."""
    flag_of_name = {}
    for flag in all_flags:
        for name in flag.names:
            flag_of_name[name] = flag
    return flag_of_name


FLAGS = {
    "train": _by_name(FLAGS_OF_TRAIN),
    "cmvn": _by_name(FLAGS_OF_CMVN),
    "recognize": _by_name(FLAGS_OF_RECOGNIZE),
    "average": _by_name(FLAGS_OF_AVERAGE),
}
"""WeNet's flags by command and name."""


def translate_flags(command: str, argv: Sequence[str]) -> list[str]:
    """The arguments with WeNet's flags replaced by ours; each is logged, also one without effect.

    WeNet's `--override_config "key value"` becomes `key=value`. `average` without --val_best and
    --by averages the last checkpoints, as WeNet does. Arguments with `--help` stay as they are.

    Raises ConfigError for a flag that would change the result and has no equivalent.
    """
    # With `--help` the slow libraries are stand-ins. As the value of a flag it would be lost, and
    # the command would run with them.
    if "--help" in argv or "-h" in argv:
        return list(argv)
    flags = FLAGS.get(command, {})
    translated: list[str] = []
    names: list[str] = []  # of all flags so far, also ours
    arguments = iter(argv)
    for argument in arguments:
        if not argument.startswith("--"):  # a value of the flag before it
            is_override = bool(names) and names[-1] == "--override_config"
            is_key_and_value = argument.count(" ") == 1 and "=" not in argument
            if is_override and is_key_and_value:
                argument = argument.replace(" ", "=")
            translated.append(argument)
            continue
        name, equals, value = argument.partition("=")
        names.append(name)
        flag = flags.get(name)
        if flag is None:
            translated.append(argument)
            continue
        if flag.has_value and not equals:
            value = next(arguments, "")  # argparse reports it if ours needs one
        translated += _translate(name, value, flag)
    says_which_checkpoints = "--val_best" in names or "--by" in names
    if "--src_path" in names and not says_which_checkpoints:
        translated += ["--by", "last"]
    return translated


def _translate(name: str, value: str, flag: WenetFlags) -> list[str]:
    """Our arguments for a flag of WeNet and its value; none if it has no effect.

    The first process logs what is done. Raises ConfigError for a flag that is refused.
    """
    given = f"{name} {value}".rstrip()
    if isinstance(flag, Replaced):
        ours = [_fill_in(argument, value) for argument in flag.ours.split()]
        _log_once("%s: read as %s", given, " ".join(ours))
        return ours
    if isinstance(flag, WithoutEffect):
        _log_once("%s: a flag of WeNet without effect here: %s", given, flag.reason)
    elif isinstance(flag, Refused):
        is_harmless = flag.has_value and value in flag.harmless
        if not is_harmless:
            raise ConfigError(given, f"a flag of WeNet: {flag.to_do} (docs/from-wenet.md)")
    return []


def _fill_in(argument: str, value: str) -> str:
    """One of our arguments with the value of WeNet's flag; a GPU of -1 means the CPU."""
    filled_in = argument.format(value, parent=Path(value).parent)
    return filled_in.replace("cuda:-1", "cpu")


def _log_once(message: str, *values: str) -> None:
    """Log a message, only by the first process of torchrun."""
    if os.environ.get("RANK", "0") == "0":
        logger.info(message, *values)
