# SPDX-License-Identifier: Apache-2.0
"""Make the data lists of a corpus.

Example: wenet-hs prepare commonvoice --corpus cv-corpus-11.0 --langs "ca es fr it pt" --out data

Writes OUT/{train,dev,test}/{data.list,text}, OUT/stats.json and OUT/rejected.tsv.

`wenet-hs prepare CORPUS --help` describes the corpus and its flags. An interrupted run continues
when it is started again: no clip is checked twice.
"""

import argparse
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from types import ModuleType
from typing import Any, get_type_hints

from wenet_hs import corpus
from wenet_hs.base.extensions import (
    calling_extension,
    is_known_name,
    known_names,
    load_extension,
    wrong_object,
)
from wenet_hs.base.files import locked
from wenet_hs.base.options import add_options, fields_without_option, read_options
from wenet_hs.bin.main import main_of
from wenet_hs.corpus.output import SPLITS
from wenet_hs.data.audio import describe_incomplete
from wenet_hs.score.tables import format_columns
from wenet_hs.tree.errors import DataError, list_names


def find_corpora() -> dict[str, ModuleType]:
    """The modules of `wenet_hs.corpus` that prepare a corpus, by name, without installed packages.

    A module of a corpus needs no entry anywhere. It has a docstring with an example, and
    `prepare(options)`, which writes the lists and returns the content of stats.json. The type of
    `options` is a dataclass, from which the flags are made.
    """
    names = [module.name for module in pkgutil.iter_modules(corpus.__path__)]
    modules = {name: importlib.import_module(f"{corpus.__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "prepare")}


def load_corpus(name: str) -> ModuleType:
    """The module of a corpus in an installed package, as `find_corpora` describes such a module.

    Raises ConfigError if it cannot be imported, or does not have what such a module needs.
    """
    module = load_extension("corpus", name)
    if not isinstance(module, ModuleType) or not hasattr(module, "prepare"):
        raise wrong_object("corpus", name, "is no module with `prepare`")
    with calling_extension("corpus", name, "the types of `prepare` are not known"):
        cls = get_type_hints(module.prepare).get("options")
    if not isinstance(cls, type) or not is_dataclass(cls):
        raise wrong_object("corpus", name, "has no `prepare(options: C)` with a dataclass C")
    other_fields = fields_without_option(cls)
    if other_fields:
        names = list_names(other_fields)
        fault = f"{cls.__name__} has fields that are not made by `option`: {names}"
        raise wrong_object("corpus", name, fault)
    has_out = any(field.name == "out" for field in fields(cls))
    if not has_out:
        raise wrong_object("corpus", name, f"{cls.__name__} has no option `out`")
    return module


def options_class(module: ModuleType) -> type[Any]:
    """The dataclass of the options of a corpus: the type of the parameter of its `prepare`."""
    cls: type[Any] = get_type_hints(module.prepare)["options"]
    return cls


def check_arguments(argv: Sequence[str]) -> None:
    """Raise ConfigError if the corpus is one of an installed package that cannot be used.

    The parser would say that there is no such corpus.
    """
    if argv:
        name = argv[0]
        # Only for its error: whether there is such a corpus is checked by the parser.
        is_known_name("corpus", find_corpora(), name)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare a subcommand per corpus, with its flags.

    The flags of a corpus of an installed package are declared when it is chosen, because its
    package is imported for them.
    """
    corpora = find_corpora()
    all_names = known_names("corpus", corpora)
    subparsers = parser.add_subparsers(dest="kind", required=True, metavar="|".join(all_names))
    for name, module in corpora.items():
        summary = (module.__doc__ or "").partition("\n")[0].rstrip(".")
        _declare_flags(subparsers.add_parser(name, help=summary), module)
    names_of_packages = all_names[len(corpora) :]
    for name in names_of_packages:
        declare = partial(_declare_flags_of_package, name)
        subparsers.add_parser(name, help="of an installed package", declare=declare)


def _declare_flags(parser: argparse.ArgumentParser, module: ModuleType) -> None:
    """Declare the description and the flags of a corpus, and set its module for `run`."""
    parser.description = module.__doc__
    parser.set_defaults(module=module)
    add_options(parser, options_class(module))


def _declare_flags_of_package(name: str, parser: argparse.ArgumentParser) -> None:
    """Import the corpus of an installed package, and declare its flags.

    Raises ConfigError if it cannot be used.
    """
    module = load_corpus(name)
    with calling_extension("corpus", name, "its options cannot be declared"):
        _declare_flags(parser, module)
    parser.set_defaults(package_corpus=name)


def run(args: argparse.Namespace) -> None:
    """Prepare the corpus and print its statistics.

    Raises DataError if another run writes to --out, or for faults of the corpus. Raises ConfigError
    if the corpus of a package does not return its statistics.
    """
    options = read_options(args, options_class(args.module))
    with locked(options.out, flag="--out", work="prepare", error_class=DataError):
        stats = args.module.prepare(options)
    if "package_corpus" in args:
        _check_statistics(args.package_corpus, stats)
    print_statistics(stats)
    print(f"{options.out / 'stats.json'}: prepared")


def _check_statistics(name: str, stats: object) -> None:
    """Raise ConfigError if `prepare` of a package did not return the content of stats.json."""
    required_keys = {"corpus", "langs", "total"}
    if not isinstance(stats, Mapping) or not required_keys <= stats.keys():
        fault = f"`prepare` returned {type(stats).__name__}, not what `write_corpus` returns"
        raise wrong_object("corpus", name, fault)


def print_statistics(stats: Mapping[str, Any]) -> None:
    """Print the content of stats.json: a table of languages, and lines about what is notable.

    The lines say what two sets share, how many files end too early, why clips are faulty or were
    left out, and which phones of the test set no training utterance has.
    """
    print(f"{stats['corpus']}: audio and utterances")
    for line in format_columns(_rows_of_languages(stats)):
        print(line)
    for lang, lang_stats in stats["langs"].items():
        for pair_of_sets, shared in lang_stats["in_both"].items():
            if shared["speakers"] or shared["sentences"]:
                counts = f"{shared['speakers']} speakers and {shared['sentences']} sentences"
                sets = pair_of_sets.replace("-", " and in ")  # `train-test`: train and in test
                print(f"{lang}: {counts} are both in {sets}")
    if stats.get("num_incomplete"):
        print(describe_incomplete(stats["num_incomplete"]))
    for reason, count in stats["total"]["rejected"].items():
        print(f"faulty: {count} {reason}")
    for reason, count in stats["total"]["left_out"].items():
        print(f"left out: {count} {reason}")
    if "phones" in stats:
        unseen = stats["phones"]["unseen_in_test"]
        phones = " ".join(unseen)
        print(f"phones of the test set that no training utterance has: {len(unseen)}: {phones}")


def _rows_of_languages(stats: Mapping[str, Any]) -> list[list[str]]:
    """The header, one row per language, and the totals.

    A corpus whose languages are sampled has columns about it after the language: the hours before,
    the ratio λ of the sampling, the hours and the test utterances that were wanted.
    """
    is_sampled = any("lambda" in lang_stats for lang_stats in stats["langs"].values())
    sampling_header = ["before", "λ", "wanted", "test wanted"] if is_sampled else []
    hours_header = SPLITS
    utterances_header = SPLITS
    rows = [["language", *sampling_header, *hours_header, *utterances_header, "faulty", "left out"]]
    for lang, lang_stats in stats["langs"].items():
        sampling_cells = []
        if is_sampled:
            sampling_cells = [
                _format_hours(lang_stats["hours_before"]),
                f"{lang_stats['lambda']:.4f}",
                _format_hours(lang_stats["hours_wanted"]),
                str(lang_stats["test_wanted"]),
            ]
        rows.append([lang, *sampling_cells, *_count_cells(lang_stats)])
    no_sampling = [""] * len(sampling_header)
    rows.append(["all", *no_sampling, *_count_cells(stats["total"])])
    return rows


def _count_cells(counts: Mapping[str, Any]) -> list[str]:
    """Hours per set, utterances per set, faulty and left-out clips, of one or all languages."""
    hours = [_format_hours(counts["hours"].get(name, 0.0)) for name in SPLITS]
    utterances = [str(counts["utterances"].get(name, 0)) for name in SPLITS]
    num_faulty = sum(counts["rejected"].values())
    num_left_out = sum(counts["left_out"].values())
    return [*hours, *utterances, str(num_faulty), str(num_left_out)]


def _format_hours(hours: float) -> str:
    """Hours with two digits, or minutes if it is less than an hour."""
    if hours >= 1.0:
        return f"{hours:.2f} h"
    return f"{hours * 60.0:.2f} min"


if __name__ == "__main__":
    main_of(__name__)
