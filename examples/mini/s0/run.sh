#!/usr/bin/env bash
# Mini: six languages of SIMULATED speech (espeak-ng); two recognisers that differ only in the output head.
#   ./run.sh                                      everything, in 8 to 16 minutes on two cores
#   ./run.sh --stage 2 --head "class adaptive"    other heads on the same speech; --tree brown: another tree
#   ./run.sh --seeds "777 778 779"                three trainings per head; the report shows mean and spread
#   ./run.sh --langs "es it" --unit bpe:60        two languages, word pieces: data-es_it, exp-es_it/hsoftmax-bpe_60
#   ./run.sh --nproc 2                            by torchrun: the processes share each batch; the number of steps stays
# Stages: 0 speech, 1 units, 2 tree, 3 feature statistics, 4 training, 5 averaging, 6 decoding, 7 scores, 8 report.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
langs="cs es it ky tr uk"     # languages of espeak-ng that have a file in sentences/
hours=2.0                     # of training speech, over all languages
config=$here/../../../conf/mini.yaml  # YAML of the experiment
average_num=3                 # checkpoints whose mean is the final model
DATA_OPTIONS="langs hours"
# shellcheck source=tools/recipe.sh
. "$here/../../../tools/recipe.sh"

prepare_data() {
  wenet-hs prepare synthetic --langs "$langs" --sentences "$here/sentences" --hours "$hours" --seed "$data_seed" --out "$data"
}
corpus_settings() {  # the processes share one batch, so that a step has as much speech as with one process
  [ "$nproc" = 1 ] || echo "dataset_conf.batch_conf.max_frames_in_batch=$((1500 / nproc))"
}
run_stages
