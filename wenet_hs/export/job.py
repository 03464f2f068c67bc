# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs export`: from a model folder to files that run without PyTorch, compared with it."""

from pathlib import Path
from tempfile import TemporaryDirectory

from wenet_hs.export.checks import check_model, choose_chunks, warn_about_differences
from wenet_hs.export.clips import Clips, read_comparison_clips
from wenet_hs.export.compare import compare_outputs, largest_difference
from wenet_hs.export.graphs import MODEL, collect_metadata, make_graphs
from wenet_hs.export.int8 import check_int8_errors, count_int8_errors
from wenet_hs.export.onnx_files import check_exporter_installed, quantize, write_graph
from wenet_hs.export.options import ExportOptions
from wenet_hs.export.readme import make_readme
from wenet_hs.model.experiment import Experiment, load_experiment
from wenet_hs.tree.atomic import fsync_path, write_atomic
from wenet_hs.tree.errors import CheckpointError, DataError

TOLERANCE = 1e-4
"""Largest difference of a log-probability or score; see `largest_difference`."""


def export_model(options: ExportOptions) -> list[str]:
    """Writes the files to `out`, all or none. Returns lines about the comparison.

    Raises ConfigError if the model or a package does not suit, CheckpointError if a file differs
    from PyTorch or its 8-bit weights lose too much, DataError if `out` is not empty or the test
    list has no usable clip.
    """
    check_exporter_installed()
    out = options.out
    if not _is_new_or_empty(out):
        raise DataError(out, "is not an empty folder", "name another one, or delete it")
    experiment = load_experiment(options.model_dir)
    options = choose_chunks(experiment.model.encoder, options)
    check_model(experiment, options)
    warn_about_differences(experiment, options)
    clips = read_comparison_clips(experiment, options)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        folder = Path(temporary) / "export"
        folder.mkdir()
        lines = _write_files(folder, experiment, options, clips)
        for path in (*folder.iterdir(), folder):
            fsync_path(path)
        folder.rename(out)
    return lines


def _is_new_or_empty(out: Path) -> bool:
    """Whether nothing exists at the path, or only an empty folder."""
    if not out.exists():
        return True
    return out.is_dir() and not any(out.iterdir())


def _write_files(
    folder: Path, experiment: Experiment, options: ExportOptions, clips: Clips
) -> list[str]:
    """Writes ONNX files, units and README into an empty folder.

    Returns lines about the comparison of the ONNX files with PyTorch, which are in the README too.
    Raises CheckpointError if an output differs by more than TOLERANCE, or as `check_int8_errors`.
    """
    stream = options.stream
    metadata = collect_metadata(experiment, stream)
    for graph in make_graphs(experiment, options.runtime, stream):
        write_graph(folder, graph, metadata)
    pairs = compare_outputs(folder, experiment.model, clips.features, stream)
    difference = largest_difference(pairs)
    is_small = difference <= TOLERANCE  # False for NaN
    if not is_small:
        raise CheckpointError(
            options.model_dir,
            f"onnxruntime differs from PyTorch by {difference:.1e} on {clips}, more than {TOLERANCE:g}",
            "nothing was written; report it with the train.yaml",
        )
    lines = [f"onnxruntime differs from PyTorch by at most {difference:.1e} on {clips}"]
    if options.quantize:
        int8_name = quantize(folder / MODEL).name
        int8_errors = count_int8_errors(folder, int8_name, experiment, clips, stream)
        check_int8_errors(int8_errors, options)
        lines += int8_errors.describe()
    units_name = "units.txt" if options.runtime == "wenet" else "tokens.txt"
    experiment.tokenizer.table.write(folder / units_name)
    readme = make_readme(experiment, options.runtime, stream, lines)
    write_atomic(folder / "README.md", readme)
    return lines
