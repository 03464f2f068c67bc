#!/usr/bin/env bash
# Mini: six languages of SIMULATED speech (espeak-ng); two recognisers that differ only in the output head.
#   ./run.sh                                      everything, in 8 to 16 minutes on two cores
#   ./run.sh --stage 2 --head "class adaptive"    other heads on the same speech; --tree brown: another tree
#   ./run.sh --seeds "777 778 779"                three trainings per head; the report shows mean and spread
#   ./run.sh --langs "es it" --unit bpe:60 --data data-es_it --exp exp-es_it    two languages, word pieces
#   ./run.sh --nproc 2                            by torchrun: the processes share each batch; the number of steps stays
# Stages: 0 speech, 1 units, 2 trees, 3 feature statistics, 4 training, 5 averaging, 6 decoding, 7 scores, 8 report.
# shellcheck disable=SC2086  # lists of names are words
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) root=$(cd "$(dirname "$0")/../../.." && pwd)
# shellcheck source=tools/recipe.sh
. "$root/tools/recipe.sh"
langs="cs es it ky tr uk"     # languages of espeak-ng that have a file in sentences/
hours=2.0                     # of training speech, over all languages
config=$root/conf/mini.yaml   # YAML of the experiment
average_num=3                 # checkpoints whose mean is the final model (wenet-hs average)
OF_DATA="langs hours"
read_options "$@"
wenet-hs check-options --config "$config" --head $head --tree "$tree" --modes $modes --unit "$unit" --seeds $seeds --override_config "${more[@]}"

if at 0 "speech and data lists"; then
  wenet-hs prepare synthetic --langs "$langs" --sentences "$here/sentences" --hours "$hours" --seed "$data_seed" --out "$data"
  keep_options data
fi

if at 1 "units"; then
  wenet-hs units --data_list "$data/train/data.list" --kind "$kind" "${pieces[@]}" "${bpe[@]}" --out "$data/units.txt"
fi

if at 2 "trees"; then
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
  shared=() frames=$(sed -n '/^[^#]*max_frames_in_batch:/{s/.*max_frames_in_batch: *\([0-9]*\).*/\1/p;q}' "$config")
  [ "$nproc" = 1 ] || shared=("dataset_conf.batch_conf.max_frames_in_batch=$((${frames:?"$config has no max_frames_in_batch to divide by --nproc"} / nproc))")
  for seed in $seeds; do
    for one in $head; do
      name=$(name_of "$one" "$seed")
      beside "$exp/$name.log" "${wenet_hs[@]}" train --config "$config" --model_dir "$exp/$name" --seed "$seed" \
        --train_data "$data/train/data.list" --cv_data "$data/dev/data.list" --cmvn "$data/global_cmvn" \
        --head "$one" --tree "$(tree_of "$seed")" --units "$data/units.txt" --tokenizer "$kind" "${bpe[@]}" \
        --override_config "${shared[@]}" "${more[@]}"
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
