# SPDX-License-Identifier: Apache-2.0
"""WeNet's flags of `train`, `recognize`, `average` and `cmvn`.

Our flags and settings for them, or what to do instead.

docs/from-wenet.md explains them. Flags with our name and meaning are not listed.
"""

import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from wenet_hs.tree.errors import ConfigError

logger = logging.getLogger(__name__)


class Flag(NamedTuple):
    """What a flag of WeNet means here."""

    ours: str = ""
    """Our arguments, separated by spaces: {} is the value, {parent} its folder.

    Empty: there are none.
    """
    reason: str = ""
    """Without our arguments: why the flag has no effect, or what to do instead."""
    harmless: Sequence[str] | None = None
    """Without our arguments: the values that change nothing; with others the command stops.

    None: all values.
    """
    has_value: bool = True


def _without_effect(
    reason: str, *names: str, harmless: Sequence[str] | None = None, has_value: bool = True
) -> dict[str, Flag]:
    return {name: Flag(reason=reason, harmless=harmless, has_value=has_value) for name in names}


_refused = partial(_without_effect, harmless=())
_ALSO_REFUSED = {
    **_refused(
        "adapters are not implemented; `freeze` trains a part of a model",
        "--use_lora",
        "--only_optimize_lora",
    ),
    **_refused(
        "with it WeNet converts all text to upper case; write such symbols in units.txt",
        "--non_lang_syms",
    ),
}
FLAGS: dict[str, dict[str, Flag]] = {
    "train": {
        **dict.fromkeys(("--symbol_table", "--dict"), Flag("--units {}")),
        "--num_workers": Flag("--override_config num_workers={}"),
        "--dtype": Flag("--override_config dtype={}"),
        "--gpu": Flag("--device cuda:{}"),
        "--use_amp": Flag("--override_config dtype=fp16", has_value=False),
        "--freeze_modules": Flag("--override_config freeze=[{}]"),
        **_without_effect("TensorBoard's files are in MODEL_DIR", "--tensorboard_dir"),
        **_without_effect("batches are always loaded ahead", "--prefetch"),
        **_without_effect(
            "batches are copied while the device computes", "--pin_memory", has_value=False
        ),
        **_without_effect(
            "chosen by --device: nccl for cuda, gloo for cpu",
            "--ddp.dist_backend",
            "--dist_backend",
        ),
        **_without_effect(
            "torchrun sets it",
            "--ddp.init_method",
            "--ddp.rank",
            "--ddp.world_size",
            "--local_rank",
        ),
        **_without_effect("WENET_HS_RANK_TIMEOUT_S sets it", "--timeout"),
        **_without_effect("only for deepspeed", "--deepspeed_config", "--deepspeed.save_states"),
        **_without_effect("gradients are averaged in float32", "--fp16_grad_sync", has_value=False),
        **_without_effect("the log has the number of parameters", "--print_model", has_value=False),
        **_refused(
            "DeepSpeed and FSDP are not implemented; leave it out",
            "--train_engine",
            harmless=("torch_ddp",),
        ),
        **_refused("not implemented; leave it out", "--deepspeed", "--jit", has_value=False),
        **_refused(
            "give --checkpoint: it copies all weights that fit", "--enc_init", "--enc_init_mods"
        ),
        **_refused("LF-MMI is not implemented; leave it out", "--lfmmi_dir", harmless=("",)),
        **_ALSO_REFUSED,
    },
    "cmvn": {
        "--train_config": Flag("--config {}"),
        "--out_cmvn": Flag("--out {}"),
        **_without_effect("nothing is logged between", "--log_interval"),
        **_refused(
            "give --data_list: the training list that `wenet-hs prepare kaldi` makes of it",
            "--in_scp",
        ),
    },
    "recognize": {
        "--config": Flag("--model_dir {parent}"),
        "--mode": Flag("--modes {}"),
        "--gpu": Flag("--device cuda:{}"),
        **_without_effect(
            "those of the model folder are used, or the unit table that its train.yaml names",
            *("--dict", "--symbol_table", "--bpe_model", "--cmvn"),
        ),
        **_without_effect("units are joined as in the training data", "--connect_symbol"),
        **_without_effect("clips are loaded ahead", "--num_workers", "--prefetch"),
        **_refused("give --result_dir DIR: the text is in DIR/<mode>/text", "--result_file"),
        **_refused("give --length_penalty", "--penalty", harmless=("0", "0.0")),
        **_refused("not implemented; leave it out", "--blank_penalty", harmless=("0", "0.0")),
        **_refused("decoding reads MODEL_DIR/train.yaml; change it there", "--override_config"),
        **_refused("give an n-gram model over words: --lm FILE.arpa", "--hlg", "--word"),
        **_refused(
            "lists of words are not implemented; --lm takes a model of such text",
            "--context_list_path",
        ),
        **_refused(
            "transducers are not implemented", "--search_transducer_weight", "--transducer_weight"
        ),
        **_ALSO_REFUSED,
    },
    "average": {
        "--src_path": Flag("--model_dir {}"),
        "--val_best": Flag("--by cv_loss", has_value=False),
        **_without_effect("every saved checkpoint counts once", "--mode"),
        **_refused(
            "give --num N: the N best or last", "--min_epoch", "--min_step", harmless=("0",)
        ),
        **_refused(
            "give --num N: the N best or last", "--max_epoch", "--max_step", harmless=("65536",)
        ),
    },
}


def translate_flags(command: str, argv: Sequence[str]) -> list[str]:
    """The arguments with WeNet's flags replaced by ours; flags without effect are logged.

    Raises ConfigError for a flag that would change the result and has no equivalent.
    """
    if (
        "--help" in argv or "-h" in argv
    ):  # never the value of a flag of WeNet's: the libraries are stand-ins then
        return list(argv)
    flags, ours, names = FLAGS.get(command, {}), list[str](), [""]
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", "")
        names += [name] if name else []
        if name in flags:
            if not equals and flags[name].has_value:
                value = next(arguments, "")
            ours += _translate(name, value, flags[name])
        elif (
            not name
            and names[-1] == "--override_config"
            and argument.count(" ") == 1
            and "=" not in argument
        ):
            ours.append(argument.replace(" ", "="))  # WeNet's "key value"
        else:
            ours.append(argument)
    if "--src_path" in names and not {"--val_best", "--by"}.intersection(names):
        ours += ["--by", "last"]  # WeNet averages the last ones without --val_best
    return ours


def _translate(name: str, value: str, flag: Flag) -> list[str]:
    shown = f"{name} {value}".rstrip()
    if flag.ours:
        parent = Path(value).parent
        ours = [
            part.format(value, parent=parent).replace("cuda:-1", "cpu")
            for part in flag.ours.split()
        ]
        _explain("%s: read as %s", shown, " ".join(ours))
        return ours
    if flag.harmless is None:
        _explain("%s: a flag of WeNet without effect here: %s", shown, flag.reason)
    elif value not in flag.harmless or not flag.has_value:
        raise ConfigError(shown, f"a flag of WeNet: {flag.reason} (docs/from-wenet.md)")
    return []


def _explain(message: str, *values: str) -> None:
    """Log it once, by the first process of torchrun."""
    if os.environ.get("RANK", "0") == "0":
        logger.info(message, *values)
