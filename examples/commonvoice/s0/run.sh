#!/usr/bin/env bash
# Common Voice, neighbouring languages, one model: characters, softmax against H-Softmax (CER per language).
#   ./run.sh --corpus /data/cv-corpus-11.0-2022-09-21 --langs "ca es fr it pt"   all stages, one family
#   ./run.sh --corpus /data/cv --stage 2 --head "hsoftmax class" --tree brown    other heads, another tree
#   ./run.sh --corpus /data/cv --alpha 0.5 --ratio 0.082                         the downsampling of Liu et al. 2023
#   ./run.sh --corpus /data/cv --unit bpe:500 --weighting per_language           word pieces; each language counts the same
#   ./run.sh --corpus /data/cv --nproc 4       by torchrun: a step has the batches of 4 processes, 4 times the speech
# Stages: 0 lists, 1 units, 2 tree, 3 feature statistics, 4 training, 5 averaging, 6 decoding, 7 scores, 8 report.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
corpus=                       # a release as downloaded: one folder for each language, validated.tsv and clips/
langs="ca es fr it pt be cs pl ru uk ba ky tr tt uz"
alpha=0.5                     # smoothing of the languages' shares
ratio=0.082                   # share of all training hours to keep
data_seed=1                   # of the random choices that stage 0 makes
config=$here/../../../conf/paper_cv.yaml  # YAML of the experiment
average_num=10                # checkpoints whose mean is the final model
DATA_OPTIONS="langs alpha ratio"
# shellcheck source=tools/recipe.sh
. "$here/../../../tools/recipe.sh"

prepare_data() {
  [ -n "$corpus" ] || { echo "$0: --corpus DIR is required (try --help)" >&2; exit 2; }
  wenet-hs prepare commonvoice --corpus "$corpus" --langs "$langs" --alpha "$alpha" --ratio "$ratio" \
    --seed "$data_seed" --out "$data"
}
run_stages
