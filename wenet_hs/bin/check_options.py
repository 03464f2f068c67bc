# SPDX-License-Identifier: Apache-2.0
"""Check the options of a recipe before its first stage: names, config and settings.

Prints nothing if they are right.

Example: wenet-hs check-options --config conf/mini.yaml --head softmax hsoftmax --tree brown --unit char --seeds 1 2

Data and units need not exist yet. `--tree` is a kind of tree or the path of a tree.json.

A recipe also gives its options as `--values NAME=VALUE …`. Their values are checked, and folders
that were made with other options (`wenet-hs keep-options`) are refused.
"""

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from wenet_hs.base.extensions import is_known_name, known_names
from wenet_hs.bin.keep_options import add_option_arguments, parse_values, select_values
from wenet_hs.bin.main import add_start_arguments, main_of, path_or_none
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
"""Stands for the tree that a later stage makes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    add(
        "--override_config",
        nargs="*",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="settings of trainings",
    )
    recipe = parser.add_argument_group("options of a recipe")
    add_option_arguments(recipe)
    add = recipe.add_argument
    add(
        "--program",
        default="",
        help="run.sh as it was called; lines about its options begin with it",
    )
    add("--last_stage", type=int, default=8, help="the number of its last stage (default: 8)")
    add(
        "--data_options",
        nargs="*",
        default=[],
        metavar="NAME",
        help="those that the data folder depends on",
    )
    add(
        "--exp_options",
        nargs="*",
        default=[],
        metavar="NAME",
        help="those that the experiments depend on",
    )


def run(args: argparse.Namespace) -> None:
    try:
        _check(args)
    except ConfigError as error:
        is_about_option = error.where.startswith("--")
        if args.program and is_about_option:
            where = f"{args.program}: {error.where}"
            raise ConfigError(where, error.found, error.to_do) from error
        raise


def _check(args: argparse.Namespace) -> None:
    """Raise ConfigError for the first fault."""
    if args.values:
        _check_recipe_options(args)
    choice = _choose_config(args)
    _check_heads_and_trees(args)
    _check_names("--modes", args.modes, ModeNames(AUTO_MODES))
    if args.unit:
        check_unit(args.unit)
    for seed in args.seeds:
        if not re.fullmatch("[0-9]{1,18}", seed):
            raise ConfigError(f"--seeds {seed}", "must be a whole number from 0 on")
    _check_known_units(args)
    if args.checkpoint:
        check_base(args.checkpoint)
    for head in args.head or ["softmax"]:
        _check_settings(args, choice, head)


def _choose_config(args: argparse.Namespace) -> ConfigChoice:
    size = args.size or AUTO
    if size != AUTO:
        read_size_table().check_name(size)
    return choose_config(
        args.config,
        base=path_or_none(args.base),
        encoder=path_or_none(args.encoder),
        size=size,
    )


def _check_heads_and_trees(args: argparse.Namespace) -> None:
    _check_heads("--head", args.head)
    _check_heads("--ctc_head", [args.ctc_head])
    if args.ctc_tree:
        load_tree(args.ctc_tree)
    for tree in args.tree:
        if tree.endswith(".json"):
            load_tree(tree)
        else:
            _check_names("--tree", [tree], KINDS, "the path of a tree.json, or ")


def _check_heads(flag: str, heads: Iterable[str]) -> None:
    unknown = [head for head in heads if not is_known_name("head", HEADS, head)]
    _check_names(flag, unknown, known_names("head", HEADS))


def _check_known_units(args: argparse.Namespace) -> None:
    if args.inventory:
        read_inventories(args.inventory)
    if args.place_unseen:
        _check_names("--place_unseen", [args.place_unseen], PLACEMENTS)
    if args.place_unseen and not args.inventory:
        to_do = "give the inventory, or leave it out"
        raise ConfigError("--place_unseen", "has no effect without --inventory", to_do)


def _check_settings(args: argparse.Namespace, choice: ConfigChoice, head: str) -> None:
    """Raise ConfigError if the config with this head, all settings and the modes do not fit each
    other.
    """
    kind = LmConfig if is_language_model(choice.file_settings.values) else ExperimentConfig
    of_heads = [*_head_settings("", head)]
    if args.ctc_head != "softmax":
        of_heads += _head_settings("ctc_conf.", args.ctc_head)
    overrides = [*of_heads, *choice.settings, *args.override_config]
    config = make_config(choice.file_settings, overrides, kind)
    if isinstance(config, ExperimentConfig):
        _check_modes(args.modes, config)


def _check_modes(modes: Sequence[str], config: ExperimentConfig) -> None:
    """Raise ConfigError for a mode whose branches a training with this config does not train."""
    has_decoder = config.decoder != "none"
    ctc_weight = config.model_conf.trained_ctc_weight
    trained = trained_branches(branches_of(has_decoder=has_decoder), ctc_weight)
    untrained_modes = [
        mode for mode in modes if mode != AUTO_MODES and not find_mode(mode).branches <= trained
    ]
    cause = f"model_conf.ctc_weight {ctc_weight:g}" if has_decoder else "decoder: none"
    _check_names(f"{cause}, --modes", untrained_modes, modes_with(trained))


def _head_settings(section: str, head: str) -> Iterator[str]:
    """The settings of an output layer; its tree is made by a later stage."""
    yield f"{section}head={head}"
    if has_tree(head):
        yield f"{section}head_conf.tree={UNBUILT_TREE}"


def _check_recipe_options(args: argparse.Namespace) -> None:
    """Raise ConfigError for a wrong value, or for a folder that was made with other options."""
    values = parse_values(args.values)
    check_option_values(values, args.last_stage)
    for folder, names in (("data", args.data_options), ("exp", args.exp_options)):
        if names:
            chosen = select_values(values, names)
            check_made_with(f"--{folder}", Path(values[folder]), chosen, args.recipe_dir)


def _check_names(flag: str, given: Iterable[str], known: Iterable[str], other: str = "") -> None:
    for name in given:
        if name not in known:
            raise ConfigError(f"{flag} {name}", f"must be {other}one of {', '.join(known)}")


if __name__ == "__main__":
    main_of(__name__)
