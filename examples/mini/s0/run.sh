#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2086  # lists of names are words
# shellcheck disable=SC2154  # read_options sets the variables of the options
set -euo pipefail

usage() {
  cat << 'END'
Mini: six languages of SIMULATED speech (espeak-ng);
two recognisers that differ only in the output head.
  ./run.sh                                      everything, in 8 to 16 minutes on two cores
  ./run.sh --stage 2 --head "class adaptive"    other heads on the same speech
  ./run.sh --stage 2 --tree brown               another tree
  ./run.sh --seeds "777 778 779"                three trainings per head; the report shows their
                                                mean and spread
  ./run.sh --nproc 2                            by torchrun: the processes share each batch; the
                                                number of steps stays
  ./run.sh --langs "es it" --unit bpe:60 --data data-es_it --exp exp-es_it
                                                two languages, word pieces
Stages: 0 speech, 1 units, 2 trees, 3 feature statistics, 4 training, 5 averaging, 6 decoding,
        7 scores, 8 report.
END
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
# shellcheck source=tools/recipe.sh
. "$root/tools/recipe.sh"

option langs "cs es it ky tr uk" "languages of espeak-ng that have a file in sentences/"
option hours 2.0 "of training speech, over all languages"
option config "$root/conf/mini.yaml" "YAML of the experiment"
option average_num 3 "checkpoints whose mean is the final model (wenet-hs average)"
shared_options  # those of every recipe; of two declarations of an option the first counts
# Sets the options, and variables that follow from them (set_command_flags in tools/recipe.sh):
#   override_settings                 the words of --override
#   unit_flags, tokenizer_flags   flags by --unit; metric: per for phones, else cer
#   parallel_wenet_hs                 wenet-hs as one process, or as --nproc processes
#   experiments                       a folder per head and seed; experiment_flags: for the report
#   decoding_folder, chunk_flags    by --eval_set and --chunk: test, or test-chunk16-4
read_options "$@"

# The options on which the content of a folder depends: a folder that was made with others is
# refused, because it would mix what belongs to different options.
data_options="langs hours data_seed unit"
exp_options="data config"

check_options --data_options $data_options --exp_options $exp_options \
  --config "$config" --override_config "${override_settings[@]}" \
  --head $head --tree "$tree" --seeds $seeds \
  --modes $modes --unit "$unit"

if begin_stage 0 "speech and data lists"; then
  wenet-hs prepare synthetic --langs "$langs" --sentences "$here/sentences" --hours "$hours" \
    --seed "$data_seed" --out "$data"
  keep_options "$data" $data_options
fi

if begin_stage 1 "units"; then
  wenet-hs units --data_list "$data/train/data.list" "${unit_flags[@]}" --out "$data/units.txt"
fi

if begin_stage 2 "trees"; then
  if [[ $tree != *.json ]]; then  # a tree.json is used as it is
    for seed in $seeds; do
      wenet-hs tree build --kind "$tree" --seed "$seed" \
        --data_list "$data/train/data.list" "${tokenizer_flags[@]}" --units "$data/units.txt" \
        --out "$(tree_file "$seed")"
    done
  fi
fi

if begin_stage 3 "feature statistics"; then
  "${parallel_wenet_hs[@]}" cmvn --data_list "$data/train/data.list" \
    --config "$config" --override_config "${override_settings[@]}" \
    --out "$data/global_cmvn"
fi

if begin_stage 4 "training (logs: $exp/*.log)"; then
  keep_options "$exp" $exp_options
  for seed in $seeds; do
    for head_name in $head; do
      name=$(experiment_name "$head_name" "$seed")
      # --divide_batch: with --nproc N a process has 1/N of a batch.
      start_training "$exp/$name.log" \
        "${parallel_wenet_hs[@]}" train --model_dir "$exp/$name" \
        --config "$config" --divide_batch --seed "$seed" \
        --train_data "$data/train/data.list" --cv_data "$data/dev/data.list" \
        --cmvn "$data/global_cmvn" \
        --units "$data/units.txt" "${tokenizer_flags[@]}" \
        --head "$head_name" --tree "$(tree_file "$seed")" \
        --override_config "${override_settings[@]}"
    done
  done
  wait_for_trainings
  end_progress
fi

# Each experiment is averaged, decoded and scored before the next one.
for dir in "${experiments[@]}"; do
  if begin_stage 5 "average of $dir"; then
    wenet-hs average --model_dir "$dir" --num "$average_num"
  fi
  if begin_stage 6 "decoding with $dir"; then
    "${parallel_wenet_hs[@]}" recognize --model_dir "$dir" \
      --test_data "$data/$eval_set/data.list" --result_dir "$dir/$decoding_folder" \
      "${chunk_flags[@]}" --modes $modes
  fi
  if begin_stage 7 "scores of $dir ($decoding_folder/MODE/score.txt)"; then
    # Writes score.txt and score.json of each mode, which the report reads; it also shows them.
    wenet-hs score --metric "$metric" --by lang \
      --ref "$data/$eval_set/text" --data_list "$data/$eval_set/data.list" \
      --hyp "$dir/$decoding_folder" --name "${dir##*/}" > /dev/null
  fi
done

if begin_stage 8 "report"; then
  wenet-hs report "${experiment_flags[@]}" \
    --stats "$data/stats.json" --data_list "$data/$eval_set/data.list" --test "$decoding_folder" \
    --out "$exp/report.html" "${results_flags[@]}"
fi
