# SPDX-License-Identifier: Apache-2.0
"""wenet-hs: speech recognition with tree-structured output layers.

Example: wenet-hs recognize --model_dir exp/hsoftmax --test_data data/test/data.list --result_dir exp/hsoftmax/test
"""

import argparse
import errno
import importlib
import io
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from wenet_hs.base.extensions import has_extension_name, known_names
from wenet_hs.base.files import too_many_files
from wenet_hs.bin import stand_ins
from wenet_hs.bin.wenet_flags import translate_flags
from wenet_hs.manifest.data_list import Utterance, read_data_list, read_sentences
from wenet_hs.tree.errors import ConfigError, WenetHsError

logger = logging.getLogger(__name__)

COMMANDS = {
    "prepare": "make the data lists of a corpus",
    "check": "show everything that is wrong with data lists",
    "units": "make the unit table: characters, phones, BPE pieces or words",
    "tree": "build a tree over the units, show, import or export one",
    "embed": "train word vectors on text",
    "cmvn": "compute the global feature statistics",
    "shards": "pack a data list into tars",
    "check-options": "check the options of a recipe before its first stage",
    "heads-without-tree": "print which output layers of a recipe are built without a tree",
    "keep-options": "write into a folder of a recipe with which options it is made",
    "plan": "decide size, steps and settings of a training, and how long it takes here",
    "train": "train a model",
    "progress": "show how far the trainings of a recipe are",
    "own": "all stages from your own recordings to a recogniser, its error rates and a report",
    "average": "average checkpoints into final.pt",
    "import": "make a model folder from a fine-tuned model in Hugging Face's layout",
    "lm": "n-gram and recurrent language models: estimate, train, score, sample, count",
    "recognize": "decode a data list",
    "combine": "combine the n-best lists of several models",
    "align": "forced alignment: times of units and words of transcripts, also for Praat",
    "score": "error rates of a decoded list",
    "export": "write a model as ONNX, for onnxruntime, sherpa-onnx or WeNet's runtime",
    "pack": "write a model to share: safetensors, settings, model card",
    "compare": "paired bootstrap test of two systems",
    "report": "one HTML page about one or more experiments",
    "transcribe": "decode recordings, also to files for ELAN and Praat",
    "app": "a page on your own computer, from recordings to a recogniser and back",
    "compute-cer": "WeNet's scorer of characters: its command line and layout",
    "compute-wer": "WeNet's scorer of words: its command line and layout",
}


def main() -> None:
    """Entry point of the `wenet-hs` console script."""
    # PyTorch then asks for huge pages for large tensors. Fresh memory costs a third of the time: a
    # training step of a language model over 33,278 words with dense gradients is 18 % faster.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        listing = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
        with suppress(BrokenPipeError):  # `wenet-hs | head`
            print(f"{__doc__}\nCommands (wenet-hs COMMAND --help shows the options):\n{listing}")
        sys.exit(0)
    if arguments[0] not in COMMANDS:
        print(
            f"wenet-hs: no command {arguments[0]!r}; there are: {' '.join(COMMANDS)}",
            file=sys.stderr,
        )
        sys.exit(2)
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    is_help = "--help" in options or "-h" in options
    if is_help and not has_extension_name(
        "corpus", options
    ):  # its package is imported for its flags
        stand_ins.install()
    sys.exit(run_command(_load(arguments[0]), arguments[1:]))


def _load(name: str) -> ModuleType:
    """Import the module of a command.

    Ctrl-C during the import, which takes a second, prints one line too.

    An exception would not work: the library that is being imported turns it into an ImportError, or
    ignores it.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        print(f"wenet-hs {name}: stopped", file=sys.stderr, flush=True)
        os._exit(130)

    before, path = signal.getsignal(signal.SIGINT), f"wenet_hs.bin.{name.replace('-', '_')}"
    if before is not signal.default_int_handler:  # a background job may ignore it
        return importlib.import_module(path)
    signal.signal(signal.SIGINT, stop)
    module = importlib.import_module(path)
    signal.signal(signal.SIGINT, before)
    return module


# ---- shared by all commands

MODEL_HELP = "experiment folder, ours or WeNet's, or a packed model: folder, ZIP, hf://user/name"


class _Parser(argparse.ArgumentParser):
    """A mistake in the flags is one line, without the usage of all flags.

    Descriptions keep their lines.
    """

    def __init__(
        self, declare: Callable[[argparse.ArgumentParser], None] | None = None, **settings: Any
    ) -> None:
        """`declare` adds the flags, and a description, when this parser is chosen: it may import a
        package.
        """
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self._declare = declare

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._declare is not None:
            self._declare(self)
            self._declare = None
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (try --help)\n")


def run_command(module: ModuleType, argv: Sequence[str] | None = None) -> int:
    """Parse `argv` for one command module and run it.

    Returns the exit code: 0 done, 2 a user error, 130 Ctrl-C.

    A training that a signal ended after saving returns 128 plus the signal: 143, 130, 138. An
    OSError of a file or disk is a user error too. The module has `add_arguments(parser)` and
    `run(args)`, and its docstring begins `--help`. It may have `check_arguments(argv)`, which
    raises a WenetHsError for what the parser would refuse in other words, and
    `translate_arguments(argv)`, which returns the arguments that the parser gets.
    """
    name = _command_name(module)
    parser = _Parser(prog=f"wenet-hs {name}", description=module.__doc__)
    module.add_arguments(parser)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without UTF-8 shows escapes
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    logging.captureWarnings(True)
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if hasattr(module, "check_arguments"):
            module.check_arguments(arguments)
        if hasattr(module, "translate_arguments"):
            arguments = module.translate_arguments(arguments)
        args = parser.parse_args(translate_flags(name, arguments))
        module.run(args)
        sys.stdout.flush()
    except WenetHsError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `wenet-hs … | head`: the flush at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (
        UnicodeEncodeError
    ) as error:  # Python reads bytes of names that are not UTF-8 as surrogates
        shown = ascii(error.object[:200])
        print(
            f"{shown}: cannot be written as UTF-8; if it is a name of a file or folder, rename it",
            file=sys.stderr,
        )
        return 2
    except OSError as error:
        where = error.filename2 or error.filename or f"wenet-hs {name}"
        if error.errno == errno.EMFILE:
            print(too_many_files(where), file=sys.stderr)
            return 2
        print(
            f"{where}: {error.strerror or error}; check the path, its permissions and the disk",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt as error:  # the message, if any, says how to continue
        print(f"wenet-hs {name}: stopped{'; ' if error.args else ''}{error}", file=sys.stderr)
        return 130
    return 0


def _command_name(module: ModuleType) -> str:
    """The command of a module, such as `compute-cer`.

    `python -m` and `python FILE` call the module `__main__`.
    """
    name = module.__spec__.name if module.__spec__ else module.__name__
    if name == "__main__" and module.__file__:
        name = Path(module.__file__).stem
    return name.rpartition(".")[2].replace("_", "-")


def main_of(module_name: str) -> None:
    """Run a command module as a program: the last line of every command file."""
    sys.exit(run_command(sys.modules[module_name]))


def check_at_least(args: argparse.Namespace, least: int, *names: str, hint: str = "") -> None:
    """Raise ConfigError if one of these flags has a number below `least` or not finite; one not
    given has None.
    """
    for name in names:
        value = getattr(args, name)
        if value is not None and not least <= value < math.inf:  # NaN too
            finite = "" if math.isfinite(value) else "a finite number of "
            raise ConfigError(f"--{name} {value}", f"must be {finite}at least {least}{hint}")


Action = tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], None]]
"""The text of `--help`, which declares the flags, which runs it."""


def add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, Action]) -> None:
    """Declare the actions of a command and their flags; the chosen one becomes `run_action`."""
    subparsers = parser.add_subparsers(dest="action", required=True, metavar="|".join(actions))
    for name, (text, add_flags, run_action) in actions.items():
        action = subparsers.add_parser(name, help=text.partition("\n")[0], description=text)
        action.set_defaults(run_action=run_action)
        add_flags(action)


def run_action(args: argparse.Namespace) -> None:
    """Run the action that was chosen."""
    args.run_action(args)


def add_start_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags --base and --encoder: what the trainings start from, which decides their config."""
    add = parser.add_argument
    base_help = "folder of a trained model whose layers stay: its train.yaml is the config"
    add("--base", default="", metavar="DIR", help=base_help)
    encoder_help = "folder of a pretrained encoder: with conf/own.yaml the config follows from it"
    add("--encoder", default="", metavar="DIR", help=encoder_help)


def path_or_none(text: str) -> Path | None:
    """The path of an option; None if it is empty, as recipes pass an option that was not given."""
    return Path(text) if text else None


def add_transcript_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags --data_list and --text, of which exactly one is required."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--data_list", type=Path, nargs="+", help="data.list files whose transcripts are counted"
    )
    text_help = "plain text instead, one sentence per line; .gz, .xz and .bz2 are decompressed"
    source.add_argument("--text", type=Path, nargs="+", metavar="FILE", help=text_help)
    empty_help = (
        "an empty line of --text is a sentence without units, as in the WikiText benchmarks"
    )
    parser.add_argument("--keep_empty_lines", action="store_true", help=empty_help)


def read_utterances(args: argparse.Namespace) -> list[Utterance]:
    """The utterances of --data_list, or the sentences of --text."""
    if args.text:
        keep = args.keep_empty_lines
        return [
            sentence
            for path in args.text
            for sentence in read_sentences(path, keep_empty_lines=keep)
        ]
    if args.keep_empty_lines:
        raise ConfigError("--keep_empty_lines", "has no effect with --data_list", "leave it out")
    return [utterance for path in args.data_list for utterance in read_data_list(path)]


def check_bpe_model(tokenizer: str, bpe_model: Path | None) -> None:
    """Raise ConfigError unless the sentencepiece model is given exactly if the tokenizer uses it."""
    if tokenizer == "bpe" and bpe_model is None:
        raise ConfigError(
            "--bpe_model", "tokenizer bpe without a model", "name the sentencepiece file"
        )
    if tokenizer != "bpe" and bpe_model is not None:
        found = f"tokenizer {tokenizer} does not use it"
        raise ConfigError("--bpe_model", found, "add --tokenizer bpe, or leave it out")


def add_model_dir_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags --model_dir and --resume of the commands that train."""
    parser.add_argument("--model_dir", type=Path, required=True, help="experiment folder to write")
    resume_help = "auto: resume from the newest intact checkpoint in model_dir, if any; never; or a checkpoint folder"
    parser.add_argument("--resume", default="auto", help=f"{resume_help} (default: auto)")


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """The flag --device; `find_device` reads its value."""
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:1 … (default: cuda if there is one)"
    )


SETTING_FLAGS = {
    "head": ("head", "output layer"),
    "tree": ("head_conf.tree", "tree.json of the output layer, if it has a tree"),
    "tokenizer": ("tokenizer", "what a unit is: char, phone, bpe, word"),
    "units": ("tokenizer_conf.symbol_table_path", "units.txt"),
    "bpe_model": ("tokenizer_conf.bpe_path", "sentencepiece model, for units of bpe"),
    "ctc_head": ("ctc_conf.head", "output layer of CTC, like --head"),
    "ctc_tree": (
        "ctc_conf.head_conf.tree",
        "tree.json of the output layer of CTC, if it has a tree",
    ),
    "cmvn": (
        "cmvn_conf.cmvn_file",
        "feature statistics of `wenet-hs cmvn`; a pretrained encoder does not use them",
    ),
    "seed": ("seed", "of weights, order of the data and augmentation"),
}
"""A flag of the commands that train → the setting that it gives, its help."""


def add_setting_arguments(
    parser: argparse.ArgumentParser, names: Iterable[str] = SETTING_FLAGS
) -> None:
    """--override_config, and flags for the settings that every recipe gives."""
    from wenet_hs.config.heads import HEADS  # takes 0.1 s, which other commands do not need

    group = parser.add_argument_group("settings, instead of those of the YAML")
    for name in names:
        _, help_text = SETTING_FLAGS[name]
        if name == "head":
            help_text = f"{help_text}: {', '.join(known_names('head', HEADS))}"
        group.add_argument(f"--{name}", metavar=name.rpartition("_")[2].upper(), help=help_text)
    help_text = "any other setting; it also replaces what the flags above give"
    group.add_argument(
        "--override_config",
        nargs="*",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help=help_text,
    )


def read_settings(args: argparse.Namespace) -> list[str]:
    """The overrides that the flags of `add_setting_arguments` give."""
    from wenet_hs.config.heads import is_without_tree

    given = {
        name: getattr(args, name) for name in SETTING_FLAGS if getattr(args, name, None) is not None
    }
    for head, tree in (("head", "tree"), ("ctc_head", "ctc_tree")):
        if head in given and tree in given and is_without_tree(given[head]):
            logger.info("--%s %s: not used, a %s has no tree", tree, given.pop(tree), given[head])
    implied = ["tokenizer=bpe"] if "bpe_model" in given and "tokenizer" not in given else []
    return [
        *implied,
        *(f"{SETTING_FLAGS[name][0]}={value}" for name, value in given.items()),
        *args.override_config,
    ]


def print_failures(failed: Mapping[str, str]) -> None:
    """Print one line on stderr per failed utterance.

    `failed`: reasons by key, in the order of the list.
    """
    for key, reason in failed.items():
        print(f"utterance {key}: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
