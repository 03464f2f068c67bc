#!/usr/bin/env bash
# UCLA Phonetic Corpus: phones of languages never heard in training, softmax against H-Softmax (PER per language).
#   ./run.sh --corpus /data/ucla                        all stages
#   ./run.sh --corpus /data/ucla --stage 6              decode and score again
#   ./run.sh --corpus /data/ucla --stage 2 --head "hsoftmax class" --tree articulatory   phones by their features
#   ./run.sh --corpus /data/ucla --seeds "777 778 779"  three trainings per head; the report shows mean and spread
#   ./run.sh --corpus /data/ucla --test_langs "abk ace" other test languages (the default: the ten of Liu et al. 2023)
#   ./run.sh --corpus /data/ucla --dev_langs "wuu cpn ell col eus" --eval_set dev   make choices without the test set
#   ./run.sh --corpus /data/ucla --pretrain 14          real + simulated: pretraining on 14 hours of simulated words
#   ./run.sh --corpus /data/ucla --nproc 4              by torchrun: a step has 4 batches, 4 times the speech
# Stages: 0 lists, 1 units, 2 tree, 3 feature statistics, 4 training, 5 averaging, 6 decoding, 7 scores, 8 report.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
corpus=                       # one folder for each language: text.txt, audio/
test_langs="bin sbc mal kea klu aeb mak fin abk ace"
dev_langs=                    # languages held out for choices, such as "wuu cpn ell col eus" (README); else 5 % of the words
train_share=1                 # share of the training utterances, for learning curves; 0.25 is a part of 0.5
pretrain=0                    # hours of simulated words for the first part of training; 0: the real speech
exclude_langs="dra sem cus poz map roa la ht ia lfn fi et smj"  # voices that do not speak: relatives of the test languages
base_override="model_conf.ctc_only_steps=1500 scheduler_conf.total_steps=1500 scheduler_conf.warmup_steps=400"
config=$here/../../../conf/ucla.yaml  # YAML of the experiment
unit=phone                    # char, phone, or bpe:N with N pieces
average_num=5                 # checkpoints whose mean is the final model
DATA_OPTIONS="test_langs dev_langs train_share"
MORE_OPTIONS="pretrain exclude_langs base_override"
# shellcheck source=tools/recipe.sh
. "$here/../../../tools/recipe.sh"

prepare_data() {
  [ -n "$corpus" ] || { echo "$0: --corpus DIR is required (try --help)" >&2; exit 2; }
  wenet-hs prepare ucla --corpus "$corpus" --test_langs "$test_langs" --dev_langs "$dev_langs" \
    --train_share "$train_share" --seed "$data_seed" --out "$data"
  [ "$pretrain" = 0 ] || wenet-hs prepare synthetic --unit phone --hours "$pretrain" --exclude_langs "$exclude_langs" \
    --match_list "$data/train/data.list" --seed "$data_seed" --out "$simulated"
}

[[ $pretrain =~ ^[0-9]+([.][0-9]+)?$ ]] || _fail "--pretrain $pretrain: must be a number of hours"
if [ "$pretrain" = 0 ]; then
  # shellcheck disable=SC2154
  [ "$exclude_langs" = "$_default_exclude_langs" ] || _fail "--exclude_langs: has no effect without --pretrain"
else
  [ -n "$base_override" ] || _fail "--base_override \"\": --pretrain needs the first part of training"
  [ "$unit" = phone ] || _fail "--pretrain $pretrain: the simulated words have phones; use --unit phone"
  simulated=$data/simulated$(_suffix pretrain exclude_langs)
  variant=-${simulated##*/}
  units=$data/units$variant.txt
  unit_lists+=("$simulated/train/data.list")
  base_data=$simulated
  # shellcheck disable=SC2154  # twice the steps: better on the dev languages
  [ "$base_override" != "$_default_base_override" ] || base_override=${base_override//=1500/=3000}
  base_override+=" dataset_conf.cache_features=false"
fi
run_stages
