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
    """The modules of `wenet_hs.corpus` that prepare a corpus, by name.

    A new one needs no entry anywhere. Those of installed packages are not among them.

    Such a module has a docstring with an example, and `prepare(options)`, which writes the lists
    and returns the content of stats.json. The type of `options` is a dataclass, from which the
    flags are made.
    """
    names = [module.name for module in pkgutil.iter_modules(corpus.__path__)]
    modules = {name: importlib.import_module(f"{corpus.__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "prepare")}


def load_corpus(name: str) -> ModuleType:
    """Such a module of an installed package.

    Raises ConfigError if it cannot be imported, or is no such module.
    """
    module = load_extension("corpus", name)
    if not isinstance(module, ModuleType) or not hasattr(module, "prepare"):
        raise wrong_object("corpus", name, "is no module with `prepare`")
    with calling_extension("corpus", name, "the types of `prepare` are not known"):
        cls = get_type_hints(module.prepare).get("options")
    if not isinstance(cls, type) or not is_dataclass(cls):
        raise wrong_object("corpus", name, "has no `prepare(options: C)` with a dataclass C")
    others = fields_without_option(cls)
    if others:
        found = f"{cls.__name__} has fields that are not made by `option`: {list_names(others)}"
        raise wrong_object("corpus", name, found)
    if "out" not in {field.name for field in fields(cls)}:
        raise wrong_object("corpus", name, f"{cls.__name__} has no option `out`")
    return module


def options_class(module: ModuleType) -> type[Any]:
    """The dataclass of the options of a corpus: the type of the parameter of its `prepare`."""
    cls: type[Any] = get_type_hints(module.prepare)["options"]
    return cls


def check_arguments(argv: Sequence[str]) -> None:
    """Raise ConfigError for a corpus of a package that cannot be used; the parser would say that
    there is none.
    """
    if argv:
        is_known_name("corpus", find_corpora(), argv[0])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    corpora = find_corpora()
    names = known_names("corpus", corpora)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="|".join(names))
    for name, module in corpora.items():
        summary = (module.__doc__ or "").partition("\n")[0].rstrip(".")
        _declare_flags(kinds.add_parser(name, help=summary), module)
    for name in names[len(corpora) :]:
        kinds.add_parser(
            name, help="of an installed package", declare=partial(_declare_flags_of_package, name)
        )


def _declare_flags(parser: argparse.ArgumentParser, module: ModuleType) -> None:
    parser.description = module.__doc__
    parser.set_defaults(module=module)
    add_options(parser, options_class(module))


def _declare_flags_of_package(name: str, parser: argparse.ArgumentParser) -> None:
    module = load_corpus(name)
    with calling_extension("corpus", name, "its options cannot be declared"):
        _declare_flags(parser, module)
    parser.set_defaults(package_corpus=name)


def run(args: argparse.Namespace) -> None:
    """Prepare the corpus and print its statistics."""
    options = read_options(args, options_class(args.module))
    with locked(options.out, flag="--out", work="prepare", error_class=DataError):
        stats = args.module.prepare(options)
    if "package_corpus" in args:
        _check_statistics(args.package_corpus, stats)
    print_statistics(stats)
    print(f"{options.out / 'stats.json'}: prepared")


def _check_statistics(name: str, stats: object) -> None:
    """Raise ConfigError if what `prepare` of a package returned is not the content of stats.json."""
    if not isinstance(stats, Mapping) or not {"corpus", "langs", "total"} <= stats.keys():
        found = f"`prepare` returned {type(stats).__name__}, not what `write_corpus` returns"
        raise wrong_object("corpus", name, found)


def print_statistics(stats: Mapping[str, Any]) -> None:
    """Print one line per language, the overlap of the sets, and why clips were left out."""
    is_sampled = any("lambda" in of_lang for of_lang in stats["langs"].values())
    sampling = ("before", "λ", "wanted", "test wanted") if is_sampled else ()
    rows: list[Sequence[str]] = [("language", *sampling, *SPLITS, *SPLITS, "faulty", "left out")]
    for lang, of_lang in stats["langs"].items():
        row = _make_row(of_lang)
        if is_sampled:
            before, wanted = (
                _format_hours(of_lang[name]) for name in ("hours_before", "hours_wanted")
            )
            row = [before, f"{of_lang['lambda']:.4f}", wanted, str(of_lang["test_wanted"]), *row]
        rows.append((lang, *row))
    rows.append(("all", *("" for _ in sampling), *_make_row(stats["total"])))
    print(f"{stats['corpus']}: audio and utterances", *format_columns(rows), sep="\n")
    for lang, of_lang in stats["langs"].items():
        for pair, shared in of_lang["in_both"].items():
            if shared["speakers"] or shared["sentences"]:
                counts = f"{shared['speakers']} speakers and {shared['sentences']} sentences"
                print(f"{lang}: {counts} are both in {pair.replace('-', ' and in ')}")
    if stats.get("num_incomplete"):
        print(describe_incomplete(stats["num_incomplete"]))
    for title, key in (("faulty", "rejected"), ("left out", "left_out")):
        for kind, count in stats["total"][key].items():
            print(f"{title}: {count} {kind}")
    if "phones" in stats:
        unseen = stats["phones"]["unseen_in_test"]
        print(
            f"phones of the test set that no training utterance has: {len(unseen)}: {' '.join(unseen)}"
        )


def _make_row(of_lang: Mapping[str, Any]) -> list[str]:
    sets = [_format_hours(of_lang["hours"].get(name, 0.0)) for name in SPLITS]
    sets += [str(of_lang["utterances"].get(name, 0)) for name in SPLITS]
    return [*sets, str(sum(of_lang["rejected"].values())), str(sum(of_lang["left_out"].values()))]


def _format_hours(hours: float) -> str:
    return f"{hours:.2f} h" if hours >= 1.0 else f"{hours * 60.0:.2f} min"


if __name__ == "__main__":
    main_of(__name__)
