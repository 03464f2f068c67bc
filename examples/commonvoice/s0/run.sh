#!/usr/bin/env bash
# Common Voice, neighbouring languages, one model: characters, softmax against H-Softmax (CER per language).
#   ./run.sh --corpus /data/cv-corpus-11.0-2022-09-21 --langs "ca es fr it pt"   all stages, one family
#   ./run.sh --corpus /data/cv --stage 2 --head "hsoftmax class" --tree brown    other heads, another tree
#   ./run.sh --corpus /data/cv --alpha 1 --ratio 1                               all the speech; default: that of Liu et al. 2023
#   ./run.sh --corpus /data/cv --unit bpe:500 --data data-bpe --exp exp-bpe      word pieces
#   ./run.sh --corpus /data/cv --shards 1000   training reads tars of 1,000 utterances: for disks that are slow with many files
#   ./run.sh --corpus /data/cv --nproc 4       by torchrun: a step has the batches of 4 processes, 4 times the speech
# Stages: 0 lists, 1 units, 2 trees, 3 feature statistics, 4 training, 5 averaging, 6 decoding, 7 scores, 8 report.
# shellcheck disable=SC2086  # lists of names are words
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) root=$(cd "$(dirname "$0")/../../.." && pwd)
# shellcheck source=tools/recipe.sh
. "$root/tools/recipe.sh"
corpus=                       # a release as downloaded: one folder for each language, validated.tsv and clips/
langs="ca es fr it pt be cs pl ru uk ba ky tr tt uz"  # folders of the release
alpha=0.5                     # smoothing of the languages' shares; 1: as in the corpus
ratio=0.082                   # share of all training hours to keep
data_seed=1                   # of the random choices that stage 0 makes
shards=                       # utterances per tar of the lists that training reads; empty: no tars, single clips
config=$root/conf/paper_cv.yaml  # YAML of the experiment
base_steps=0                  # of a first training per seed, with CTC alone, from which its heads start; 0: none
average_num=10                # checkpoints whose mean is the final model (wenet-hs average)
OF_DATA="corpus langs alpha ratio" OF_EXP="base_steps"
read_options "$@"
[[ $shards =~ ^([1-9][0-9]*)?$ ]] || fail "--shards $shards: must be a whole number from 1 on, or empty"
wenet-hs check-options --config "$config" --head $head --tree "$tree" --modes $modes --unit "$unit" --seeds $seeds --override_config "${more[@]}" "model_conf.ctc_only_steps=$base_steps"

if at 0 "data lists"; then
  [ -n "$corpus" ] || fail "--corpus DIR is required (try --help)"
  wenet-hs prepare commonvoice --corpus "$corpus" --langs "$langs" --alpha "$alpha" --ratio "$ratio" --seed "$data_seed" --out "$data"
  for list in ${shards:+train dev}; do
    wenet-hs shards --data_list "$data/$list/data.list" --num_utts_per_shard "$shards" --out "$data/$list/shards"
  done
  keep_options data
fi

if at 1 "units"; then
  wenet-hs units --data_list "$data/train/data.list" --kind "$kind" "${pieces[@]}" "${bpe[@]}" --out "$data/units.txt"
fi

if at 2 "trees"; then  # counts of all languages together; add --weighting per_language for equal weights
  for seed in $seeds; do
    [[ $tree = *.json ]] || wenet-hs tree build --kind "$tree" --seed "$seed" --tokenizer "$kind" "${bpe[@]}" \
      --units "$data/units.txt" --data_list "$data/train/data.list" --out "$(tree_of "$seed")"
  done
fi

if at 3 "feature statistics"; then
  "${wenet_hs[@]}" cmvn --data_list "$data/train/data.list" --config "$config" --out "$data/global_cmvn" --override_config "${more[@]}"
fi

if at 4 "training (logs: $exp/*.log)"; then
  keep_options exp
  tars=${shards:+shards/}  # the batches are the same, so a training may continue with the other lists
  [ -f "$data/train/${tars}data.list" ] || [ -z "$shards" ] || fail "--shards $shards: no tars in $data/train/shards; run stage 0 with it"
  train=("${wenet_hs[@]}" train --config "$config" --train_data "$data/train/${tars}data.list" --cv_data "$data/dev/${tars}data.list"
    ${shards:+--data_type shard} --cmvn "$data/global_cmvn" --units "$data/units.txt" --tokenizer "$kind" "${bpe[@]}" --override_config "${more[@]}")
  for seed in $seeds; do  # the first part
    name=$(name_of base "$seed")
    [ "$base_steps" = 0 ] || beside "$exp/$name.log" "${train[@]}" "model_conf.ctc_only_steps=$base_steps" \
      "scheduler_conf.total_steps=$base_steps" --model_dir "$exp/$name" --seed "$seed" --head softmax
  done
  wait_below 1  # the heads start from the first part
  for seed in $seeds; do
    start=(); [ "$base_steps" = 0 ] || start=(--checkpoint "$exp/$(name_of base "$seed")")
    for one in $head; do
      name=$(name_of "$one" "$seed")
      beside "$exp/$name.log" "${train[@]}" --model_dir "$exp/$name" --seed "$seed" --head "$one" --tree "$(tree_of "$seed")" "${start[@]}"
    done
  done
  wait_for_trainings
fi

for dir in "${experiments[@]}"; do
  if at 5 "average of $dir"; then wenet-hs average --model_dir "$dir" --num "$average_num"; fi
  if at 6 "decoding with $dir"; then
    "${wenet_hs[@]}" recognize --model_dir "$dir" --test_data "$data/$eval_set/data.list" --result_dir "$dir/$decoded" "${chunks[@]}" --modes $modes
  fi
  if at 7 "scores of $dir ($decoded/MODE/score.txt)"; then
    wenet-hs score --metric "$metric" --by lang --ref "$data/$eval_set/text" --data_list "$data/$eval_set/data.list" \
      --hyp "$dir/$decoded" --name "${dir##*/}" > /dev/null
  fi
done

if at 8 "report"; then
  wenet-hs report "${experiments[@]/#/--exp=}" --stats "$data/stats.json" --data_list "$data/$eval_set/data.list" \
    --test "$decoded" --out "$exp/report.html" ${results:+--results "$results"}
fi
