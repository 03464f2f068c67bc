# SPDX-License-Identifier: Apache-2.0
"""wenet-hs: speech recognition with tree-structured output layers.

Example: wenet-hs recognize --model_dir exp/hsoftmax --test_data data/test/data.list \\
             --result_dir exp/hsoftmax/test
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
from dataclasses import dataclass
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
"""The name of each command, and what `wenet-hs --help` says about it."""

EXIT_DONE = 0
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
"""128 + the number of SIGINT, as shells report a program that Ctrl-C ended."""


def main() -> None:
    """Run the console script `wenet-hs`: list the commands, or run the one that is named.

    Always ends the process: with 2 for an unknown command, otherwise with the exit code of
    `run_command`.
    """
    # PyTorch then asks for huge pages for large tensors. Fresh memory costs a third of the time: a
    # training step of a language model over 33,278 words with dense gradients is 18 % faster.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        _print_commands()
        sys.exit(EXIT_DONE)
    name = arguments[0]
    if name not in COMMANDS:
        known = " ".join(COMMANDS)
        print(f"wenet-hs: no command {name!r}; there are: {known}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
    if _should_install_stand_ins(arguments):
        stand_ins.install()
    module = _import_command(name)
    sys.exit(run_command(module, arguments[1:]))


def _print_commands() -> None:
    """Print one line per command, with what it does."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    listing = "\n".join(lines)
    with suppress(BrokenPipeError):  # `wenet-hs | head`
        print(f"{__doc__}\nCommands (wenet-hs COMMAND --help shows the options):\n{listing}")


def _should_install_stand_ins(arguments: Sequence[str]) -> bool:
    """Whether this process only prints a text of `--help`, and needs no slow library for it.

    The arguments after `--` are names of files, even `--help`. A corpus of an installed package is
    imported for its flags, and may need the libraries.
    """
    options = arguments
    if "--" in arguments:
        options = arguments[: arguments.index("--")]
    is_help = "--help" in options or "-h" in options
    return is_help and not has_extension_name("corpus", options)


def _import_command(name: str) -> ModuleType:
    """Import the module of the command `name`, such as `wenet_hs.bin.compute_cer`.

    The import takes a second. Ctrl-C during it prints one line and ends the process with 130.
    """
    module_name = f"wenet_hs.bin.{name.replace('-', '_')}"

    def stop(number: int, frame: FrameType | None) -> None:
        # An exception would not work: the library that is being imported turns it into an
        # ImportError, or ignores it.
        print(f"wenet-hs {name}: stopped", file=sys.stderr, flush=True)
        os._exit(EXIT_INTERRUPTED)

    previous_handler = signal.getsignal(signal.SIGINT)
    if previous_handler is not signal.default_int_handler:  # a background job may ignore Ctrl-C
        return importlib.import_module(module_name)
    signal.signal(signal.SIGINT, stop)
    module = importlib.import_module(module_name)
    signal.signal(signal.SIGINT, previous_handler)
    return module


# ---- shared by all commands

MODEL_HELP = "experiment folder, ours or WeNet's, or a packed model: folder, ZIP, hf://user/name"


class _Parser(argparse.ArgumentParser):
    """A parser whose message about a wrong flag is one line, without the usage of all flags.

    The description keeps its line breaks.
    """

    def __init__(
        self, declare: Callable[[argparse.ArgumentParser], None] | None = None, **settings: Any
    ) -> None:
        """Make a parser with the settings of argparse.

        `declare` adds flags and a description later: when the parser gets its arguments. For a
        subcommand this is when it is chosen, so `declare` may import a package for it.
        """
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self._declare = declare

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Call `declare`, but only once, and then parse as argparse does."""
        if self._declare is not None:
            self._declare(self)
            self._declare = None
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the message of argparse in one line on stderr, and exit with 2."""
        self.exit(EXIT_USER_ERROR, f"{self.prog}: {message} (try --help)\n")


def run_command(module: ModuleType, argv: Sequence[str] | None = None) -> int:
    """Parse `argv` for one command module, run it, and return the exit code.

    0: done. 2: a user error, also an OSError of a file or disk. 130: Ctrl-C. An error of the
    package may have another code (`WenetHsError.exit_code`): a training that a signal ended after
    saving has 128 plus the signal, so 143, 130 or 138. All these errors are printed on stderr, in
    one line; other exceptions are raised. A flag that argparse refuses ends the process with 2.

    Args:
        module: it has `add_arguments(parser)` and `run(args)`; its docstring begins `--help`. It
            may have `check_arguments(argv)`, which raises a WenetHsError for what the parser
            would refuse in other words, and `translate_arguments(argv)`, which returns the
            arguments that the parser gets.
        argv: None: the arguments of this process.
    """
    name = _command_name(module)
    parser = _Parser(prog=f"wenet-hs {name}", description=module.__doc__)
    module.add_arguments(parser)
    _prepare_output()
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
    except BrokenPipeError:  # `wenet-hs … | head`
        _discard_output()
        return EXIT_DONE
    except UnicodeEncodeError as error:
        print(_describe_encoding_error(error), file=sys.stderr)
        return EXIT_USER_ERROR
    except OSError as error:
        print(_describe_os_error(error, f"wenet-hs {name}"), file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt as error:
        how_to_continue = f"; {error}" if error.args else ""
        print(f"wenet-hs {name}: stopped{how_to_continue}", file=sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_DONE


def _prepare_output() -> None:
    """Set up the log, and let a terminal without UTF-8 show escapes such as `\\u03bb`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    logging.captureWarnings(True)


def _discard_output() -> None:
    """Redirect standard output to /dev/null, so that the flush at exit does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _describe_encoding_error(error: UnicodeEncodeError) -> str:
    """The message about a text that is not UTF-8.

    Python reads the bytes of a file name that is not UTF-8 as surrogates, which cannot be written.
    """
    text = ascii(error.object[:200])
    return f"{text}: cannot be written as UTF-8; if it is a name of a file or folder, rename it"


def _describe_os_error(error: OSError, program: str) -> str:
    """The message about a file or disk: its path, the fault, what to do.

    Of two paths, as of a file that is renamed, it names the target (`filename2`). An error without
    a path begins with the name of the program. Too many open files have a message of their own.
    """
    where = error.filename2 or error.filename or program
    if error.errno == errno.EMFILE:
        return str(too_many_files(where))
    fault = error.strerror or error
    return f"{where}: {fault}; check the path, its permissions and the disk"


def _command_name(module: ModuleType) -> str:
    """The command of a module: `compute-cer` for `wenet_hs.bin.compute_cer`.

    A module that runs as a program is called `__main__`. With `python -m` its spec has the real
    name; with `python FILE` it has no spec, and the file has the name.
    """
    full_name = module.__spec__.name if module.__spec__ else module.__name__
    if full_name == "__main__" and module.__file__:
        full_name = Path(module.__file__).stem
    last_part = full_name.rpartition(".")[2]
    return last_part.replace("_", "-")


def main_of(module_name: str) -> None:
    """Run a command module as a program: the last line of every command file."""
    sys.exit(run_command(sys.modules[module_name]))


def check_at_least(args: argparse.Namespace, least: int, *names: str, hint: str = "") -> None:
    """Raise ConfigError if a flag has a number that is below `least`, infinite or NaN.

    A flag that was not given has the value None and is not checked.

    Args:
        names: of the flags, without `--`.
        hint: the end of the message, such as "; 0 is none".
    """
    for name in names:
        value = getattr(args, name)
        if value is None:
            continue
        is_in_range = least <= value < math.inf  # False for NaN
        if not is_in_range:
            required = "at least" if math.isfinite(value) else "a finite number of at least"
            raise ConfigError(f"--{name} {value}", f"must be {required} {least}{hint}")


@dataclass(frozen=True)
class Action:
    """A subcommand, such as `build` of `wenet-hs tree build`."""

    help: str
    """The text of its `--help`; the first line is its entry in the list of subcommands."""
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, Action]) -> None:
    """Declare the subcommands of a command by name, and their flags, for `run_action`."""
    subparsers = parser.add_subparsers(dest="action", required=True, metavar="|".join(actions))
    for name, action in actions.items():
        first_line = action.help.partition("\n")[0]
        subparser = subparsers.add_parser(name, help=first_line, description=action.help)
        subparser.set_defaults(run_action=action.run)
        action.add_flags(subparser)


def run_action(args: argparse.Namespace) -> None:
    """Run the subcommand that was chosen."""
    args.run_action(args)


def add_start_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --base and --encoder: what the trainings start from, which decides their config."""
    add = parser.add_argument
    base_help = "folder of a trained model whose layers stay: its train.yaml is the config"
    add("--base", default="", metavar="DIR", help=base_help)
    encoder_help = "folder of a pretrained encoder: with conf/own.yaml the config follows from it"
    add("--encoder", default="", metavar="DIR", help=encoder_help)


def path_or_none(text: str) -> Path | None:
    """The path of an option; None if it is empty, as recipes pass an option that was not given."""
    return Path(text) if text else None


def add_transcript_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --data_list and --text, of which exactly one is required, and --keep_empty_lines."""
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
    """The utterances of all files of --data_list, or the sentences of all files of --text.

    Raises ConfigError for --keep_empty_lines with --data_list.
    """
    utterances: list[Utterance] = []
    if args.text:
        for path in args.text:
            utterances += read_sentences(path, keep_empty_lines=args.keep_empty_lines)
        return utterances
    if args.keep_empty_lines:
        raise ConfigError("--keep_empty_lines", "has no effect with --data_list", "leave it out")
    for path in args.data_list:
        utterances += read_data_list(path)
    return utterances


def check_bpe_model(tokenizer: str, bpe_model: Path | None) -> None:
    """Raise ConfigError for the tokenizer bpe without a model, or a model without it.

    `bpe_model` is the sentencepiece file of --bpe_model; None if it was not given.
    """
    flag = "--bpe_model"
    if tokenizer == "bpe" and bpe_model is None:
        raise ConfigError(flag, "tokenizer bpe without a model", "name the sentencepiece file")
    if tokenizer != "bpe" and bpe_model is not None:
        fault = f"tokenizer {tokenizer} does not use it"
        raise ConfigError(flag, fault, "add --tokenizer bpe, or leave it out")


def add_model_dir_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --model_dir and --resume of the commands that train."""
    parser.add_argument("--model_dir", type=Path, required=True, help="experiment folder to write")
    resume_help = (
        "auto: resume from the newest intact checkpoint in model_dir, if any; "
        "never; or a checkpoint folder (default: auto)"
    )
    parser.add_argument("--resume", default="auto", help=resume_help)


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --device; `find_device` reads its value."""
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:1 … (default: cuda if there is one)"
    )


@dataclass(frozen=True)
class SettingFlag:
    """A flag of the commands that train, and the setting of the YAML that it replaces."""

    key: str
    """The name of the setting, with its sections: `head_conf.tree`."""
    help: str


SETTING_FLAGS = {
    "head": SettingFlag(key="head", help="output layer"),
    "tree": SettingFlag(
        key="head_conf.tree", help="tree.json of the output layer, if it has a tree"
    ),
    "tokenizer": SettingFlag(key="tokenizer", help="what a unit is: char, phone, bpe, word"),
    "units": SettingFlag(key="tokenizer_conf.symbol_table_path", help="units.txt"),
    "bpe_model": SettingFlag(
        key="tokenizer_conf.bpe_path", help="sentencepiece model, for units of bpe"
    ),
    "ctc_head": SettingFlag(key="ctc_conf.head", help="output layer of CTC, like --head"),
    "ctc_tree": SettingFlag(
        key="ctc_conf.head_conf.tree",
        help="tree.json of the output layer of CTC, if it has a tree",
    ),
    "cmvn": SettingFlag(
        key="cmvn_conf.cmvn_file",
        help="feature statistics of `wenet-hs cmvn`; a pretrained encoder does not use them",
    ),
    "seed": SettingFlag(key="seed", help="of weights, order of the data and augmentation"),
}
"""By name, without `--`."""


def add_setting_arguments(
    parser: argparse.ArgumentParser, names: Iterable[str] = SETTING_FLAGS
) -> None:
    """Declare the flags `names` of SETTING_FLAGS, and --override_config for any other setting."""
    from wenet_hs.config.heads import HEADS  # takes 0.1 s, which other commands do not need

    group = parser.add_argument_group("settings, instead of those of the YAML")
    for name in names:
        help_text = SETTING_FLAGS[name].help
        if name == "head":
            help_text = f"{help_text}: {', '.join(known_names('head', HEADS))}"
        metavar = name.rpartition("_")[2].upper()  # ctc_tree: TREE
        group.add_argument(f"--{name}", metavar=metavar, help=help_text)
    help_text = "any other setting; it also replaces what the flags above give"
    add_override_argument(group, help_text)


def add_override_argument(parser: argparse._ActionsContainer, help_text: str) -> None:
    """Declare --override_config; given several times, the settings of all are used."""
    parser.add_argument(
        "--override_config",
        nargs="*",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help=help_text,
    )


def read_settings(args: argparse.Namespace) -> list[str]:
    """The settings `KEY=VALUE` that the flags of `add_setting_arguments` give.

    Those of --override_config are last, so they replace the others. --bpe_model without --tokenizer
    implies the tokenizer bpe. A tree for an output layer without a tree is left out, and logged.
    """
    values = {}
    for name in SETTING_FLAGS:
        value = getattr(args, name, None)  # a command may have only some of the flags
        if value is not None:
            values[name] = value
    _leave_out_unused_tree(values, head="head", tree="tree")
    _leave_out_unused_tree(values, head="ctc_head", tree="ctc_tree")
    settings = []
    if "bpe_model" in values and "tokenizer" not in values:
        settings.append("tokenizer=bpe")
    for name, value in values.items():
        settings.append(f"{SETTING_FLAGS[name].key}={value}")
    return [*settings, *args.override_config]


def _leave_out_unused_tree(values: dict[str, str], *, head: str, tree: str) -> None:
    """Remove the flag `tree` from `values`, and log it, if the layer of `head` has no tree.

    Without one of both flags nothing is removed: the YAML decides then.
    """
    from wenet_hs.config.heads import is_without_tree

    if head in values and tree in values and is_without_tree(values[head]):
        path = values.pop(tree)
        logger.info("--%s %s: not used, a %s has no tree", tree, path, values[head])


def print_failures(failed: Mapping[str, str]) -> None:
    """Print one line on stderr per failed utterance.

    `failed` has the reasons by key, in the order of the data list.
    """
    for key, reason in failed.items():
        print(f"utterance {key}: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
