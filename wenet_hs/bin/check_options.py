# SPDX-License-Identifier: Apache-2.0
"""Check the options of a recipe before its first stage: names, config and settings.

Prints nothing if they are right.

Example: wenet-hs check-options --config conf/mini.yaml --head softmax hsoftmax --tree brown \\
             --unit char --seeds 1 2

Data and units need not exist yet. `--tree` is a kind of tree or the path of a tree.json.

A recipe also gives its options as `--values NAME=VALUE …`. Their values are checked, and folders
that were made with other options (`wenet-hs keep-options`) are refused.
"""

import argparse
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from wenet_hs.base.extensions import is_known_name, known_names
from wenet_hs.bin.keep_options import add_option_arguments, parse_values, select_values
from wenet_hs.bin.main import (
    add_override_argument,
    add_start_arguments,
    main_of,
    path_or_none,
)
from wenet_hs.bin.search_flags import ModeNames
from wenet_hs.config.heads import HEADS, has_tree
from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import is_language_model, make_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.decode.known_units import PLACEMENTS
from wenet_hs.model.modes import AUTO_MODES, branches_of, find_mode, modes_with, trained_branches
from wenet_hs.recipes.config_choice import ConfigChoice, check_base, choose_config
from wenet_hs.recipes.folder_options import check_made_with
from wenet_hs.recipes.option_values import check_option_values
from wenet_hs.recipes.plan import check_unit
from wenet_hs.recipes.sizes import AUTO, read_size_table
from wenet_hs.text.inventory import read_inventories
from wenet_hs.tree import load_tree
from wenet_hs.tree.errors import ConfigError
from wenet_hs.tree_kinds.kinds import KINDS

UNBUILT_TREE = "to-be-built.json"
"""Stands for the tree.json that a later stage of the recipe makes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs check-options`; empty values are as those not given."""
    add = parser.add_argument
    add("--config", type=Path, required=True, help="YAML of the trainings")
    add(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="folder of a trained model from which the trainings start",
    )
    add_start_arguments(parser)
    size_help = "of model and training: a name of conf/own_sizes.yaml, or auto"
    add("--size", default=AUTO, help=f"{size_help} (default: {AUTO})")
    add("--head", nargs="*", default=[], metavar="HEAD", help="output layers")
    add(
        "--tree", nargs="*", default=[], metavar="KIND_OR_FILE", help="trees of those that have one"
    )
    modes_help = f"decoding modes; {AUTO_MODES}: those that `recognize` recommends"
    add("--modes", nargs="*", default=[], metavar="MODE", help=modes_help)
    add("--unit", help="char, phone, or bpe:N with N pieces")
    add("--seeds", nargs="*", default=[], metavar="SEED", help="of the trainings")
    add(
        "--ctc_head",
        default="softmax",
        metavar="HEAD",
        help="output layer of CTC (default: softmax)",
    )
    add("--ctc_tree", metavar="FILE", help="its tree.json, if it has one")
    add("--inventory", type=Path, metavar="FILE", help="known units of each language, for decoding")
    add(
        "--place_unseen",
        metavar="HOW",
        help="where units of --inventory are placed that the model does not have",
    )
    add_override_argument(parser, "settings of trainings")
    recipe = parser.add_argument_group("options of a recipe")
    add_option_arguments(recipe)
    recipe.add_argument(
        "--program",
        default="",
        help="run.sh as it was called; lines about its options begin with it",
    )
    recipe.add_argument(
        "--last_stage", type=int, default=8, help="the number of its last stage (default: 8)"
    )
    recipe.add_argument(
        "--data_options",
        nargs="*",
        default=[],
        metavar="NAME",
        help="those that the data folder depends on",
    )
    recipe.add_argument(
        "--exp_options",
        nargs="*",
        default=[],
        metavar="NAME",
        help="those that the experiments depend on",
    )


def run(args: argparse.Namespace) -> None:
    """Raise ConfigError for the first fault; one about an option begins with --program."""
    try:
        _check(args)
    except ConfigError as error:
        is_about_option = error.where.startswith("--")
        if args.program and is_about_option:
            where = f"{args.program}: {error.where}"
            raise ConfigError(where, error.found, error.to_do) from error
        raise


def _check(args: argparse.Namespace) -> None:
    """Raise ConfigError for the first fault: of the recipe's own options, then flag by flag.

    Reads the files that exist already: config, trees, inventory, and the folder of --checkpoint.
    """
    if args.values:
        _check_recipe_options(args)
    choice = _choose_config(args)
    _check_heads("--head", args.head)
    _check_heads("--ctc_head", [args.ctc_head])
    _check_trees(args)
    _check_names("--modes", args.modes, ModeNames(AUTO_MODES))
    if args.unit:
        check_unit(args.unit)
    for seed in args.seeds:
        is_number = re.fullmatch("[0-9]{1,18}", seed)  # 18 digits fit in 64 bits
        if not is_number:
            raise ConfigError(f"--seeds {seed}", "must be a whole number from 0 on")
    _check_known_units(args)
    if args.checkpoint:
        check_base(args.checkpoint)
    for head in args.head or ["softmax"]:
        _check_settings(args, choice, head)


def _check_recipe_options(args: argparse.Namespace) -> None:
    """Check the options of --values.

    Raises ConfigError for a wrong value, or if the folder of the option `data` or `exp` was made
    with other values of the options --data_options or --exp_options.
    """
    values = parse_values(args.values)
    check_option_values(values, args.last_stage)
    for folder, names in (("data", args.data_options), ("exp", args.exp_options)):
        if names:
            chosen_values = select_values(values, names)
            check_made_with(f"--{folder}", Path(values[folder]), chosen_values, args.recipe_dir)


def _choose_config(args: argparse.Namespace) -> ConfigChoice:
    """The config of the trainings, by --config, --base, --encoder and --size."""
    size = args.size or AUTO
    if size != AUTO:
        read_size_table().check_name(size)
    return choose_config(
        args.config,
        base=path_or_none(args.base),
        encoder=path_or_none(args.encoder),
        size=size,
    )


def _check_heads(flag: str, heads: Iterable[str]) -> None:
    """Raise ConfigError for the first head that neither wenet_hs nor an installed package has."""
    for head in heads:
        if not is_known_name("head", HEADS, head):
            raise _unknown_name_error(flag, head, known_names("head", HEADS))


def _check_trees(args: argparse.Namespace) -> None:
    """Raise an error for a tree.json that cannot be read, or a --tree of an unknown kind."""
    if args.ctc_tree:
        load_tree(args.ctc_tree)
    for tree in args.tree:
        if tree.endswith(".json"):
            load_tree(tree)
        elif tree not in KINDS:
            kinds = ", ".join(KINDS)
            fault = f"must be the path of a tree.json, or one of {kinds}"
            raise ConfigError(f"--tree {tree}", fault)


def _check_known_units(args: argparse.Namespace) -> None:
    """Raise ConfigError for a wrong --place_unseen, or one without --inventory.

    Raises DataError for an --inventory with a fault.
    """
    if args.inventory:
        read_inventories(args.inventory)
    if args.place_unseen:
        _check_names("--place_unseen", [args.place_unseen], PLACEMENTS)
    if args.place_unseen and not args.inventory:
        to_do = "give the inventory, or leave it out"
        raise ConfigError("--place_unseen", "has no effect without --inventory", to_do)


def _check_settings(args: argparse.Namespace, choice: ConfigChoice, head: str) -> None:
    """Raise ConfigError if the config with this head, all settings and --modes do not fit.

    The settings are those of the head, of the choice, and of --override_config. A config of a
    language model has no modes.
    """
    is_lm = is_language_model(choice.file_settings.values)
    config_class = LmConfig if is_lm else ExperimentConfig
    settings = _head_settings("", head)
    if args.ctc_head != "softmax":  # the default, for which the YAML decides
        settings += _head_settings("ctc_conf.", args.ctc_head)
    settings += [*choice.settings, *args.override_config]
    config = make_config(choice.file_settings, settings, config_class)
    if isinstance(config, ExperimentConfig):
        _check_modes(args.modes, config)


def _head_settings(section: str, head: str) -> list[str]:
    """The settings `KEY=VALUE` of an output layer, and of its tree, which a later stage makes.

    `section` stands before the keys, such as `ctc_conf.`; empty for the output layer of the
    decoder.
    """
    settings = [f"{section}head={head}"]
    if has_tree(head):
        settings.append(f"{section}head_conf.tree={UNBUILT_TREE}")
    return settings


def _check_modes(modes: Sequence[str], config: ExperimentConfig) -> None:
    """Raise ConfigError for a mode whose branches a training with this config does not train.

    The mode `auto` fits every model.
    """
    has_decoder = config.decoder != "none"
    ctc_weight = config.model_conf.trained_ctc_weight
    trained = trained_branches(branches_of(has_decoder=has_decoder), ctc_weight)
    cause = f"model_conf.ctc_weight {ctc_weight:g}" if has_decoder else "decoder: none"
    for mode in modes:
        if mode != AUTO_MODES and not find_mode(mode).branches <= trained:
            known = ", ".join(modes_with(trained))
            raise ConfigError(f"{cause}, --modes {mode}", f"must be one of {known}")


def _check_names(flag: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ConfigError for the first of the names that is not known."""
    for name in names:
        if name not in known:
            raise _unknown_name_error(flag, name, known)


def _unknown_name_error(flag: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error about a name that is not one of the known ones."""
    return ConfigError(f"{flag} {name}", f"must be one of {', '.join(known)}")


if __name__ == "__main__":
    main_of(__name__)
