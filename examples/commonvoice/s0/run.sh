#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2086  # lists of names are words
# shellcheck disable=SC2154  # read_options sets the variables of the options
set -euo pipefail

usage() {
  cat << 'END'
Common Voice, neighbouring languages, one model:
characters, softmax against H-Softmax (CER per language).
  ./run.sh --corpus /data/cv-corpus-11.0-2022-09-21 --langs "ca es fr it pt"
                                              all stages, one family
  ./run.sh --corpus /data/cv --stage 2 --head "hsoftmax class" --tree brown
                                              other heads, another tree
  ./run.sh --corpus /data/cv --alpha 1 --ratio 1
                                              all the speech; default: that of Liu et al. 2023
  ./run.sh --corpus /data/cv --unit bpe:500 --data data-bpe --exp exp-bpe
                                              word pieces
  ./run.sh --corpus /data/cv --shards 1000    training reads tars of 1,000 utterances: for disks
                                              that are slow with many files
  ./run.sh --corpus /data/cv --nproc 4        by torchrun: a step has the batches of 4 processes,
                                              4 times the speech
Stages: 0 lists, 1 units, 2 trees, 3 feature statistics, 4 training, 5 averaging, 6 decoding,
        7 scores, 8 report.
END
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
# shellcheck source=tools/recipe.sh
. "$root/tools/recipe.sh"

option corpus "" \
  "a release as downloaded: one folder for each language, validated.tsv and clips/"
option langs "ca es fr it pt be cs pl ru uk ba ky tr tt uz" "folders of the release"
option alpha 0.5 "smoothing of the languages' shares; 1: as in the corpus"
option ratio 0.082 "share of all training hours to keep"
option data_seed 1 "of the random choices that stage 0 makes"
option shards "" \
  "utterances per tar of the lists that training reads; empty: no tars, single clips"
option config "$root/conf/paper_cv.yaml" "YAML of the experiment"
option base_steps 0 \
  "of a first training per seed, with CTC alone, from which its heads start; 0: none"
option average_num 10 "checkpoints whose mean is the final model (wenet-hs average)"
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
data_options="corpus langs alpha ratio data_seed unit"
exp_options="base_steps data config"

check_options --data_options $data_options --exp_options $exp_options \
  --config "$config" \
  --override_config "${override_settings[@]}" \
  --head $head --tree "$tree" --seeds $seeds \
  --modes $modes --unit "$unit"

# The first part of training, by CTC.
first_part_settings=(
  "${override_settings[@]}"
  "model_conf.ctc_only_steps=$base_steps"
  "scheduler_conf.total_steps=$base_steps"
)
if [ "$base_steps" != 0 ]; then
  wenet-hs check-options --config "$config" --override_config "${first_part_settings[@]}"
fi

if begin_stage 0 "data lists"; then
  if [ -z "$corpus" ]; then
    fail "--corpus DIR is required (try --help)"
  fi
  wenet-hs prepare commonvoice --corpus "$corpus" --langs "$langs" --alpha "$alpha" \
    --ratio "$ratio" --seed "$data_seed" --out "$data"
  if [ -n "$shards" ]; then
    for list in train dev; do
      wenet-hs shards --data_list "$data/$list/data.list" --num_utts_per_shard "$shards" \
        --out "$data/$list/shards"
    done
  fi
  keep_options "$data" $data_options
fi

if begin_stage 1 "units"; then
  wenet-hs units --data_list "$data/train/data.list" "${unit_flags[@]}" --out "$data/units.txt"
fi

# Trees by the counts of all languages together; add --weighting per_language for equal weights.
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
  # Clips, or with --shards tars of them. Their batches are the same, so that a training may go on
  # with the other lists.
  lists=(--train_data "$data/train/data.list" --cv_data "$data/dev/data.list")
  if [ -n "$shards" ]; then
    if [ ! -f "$data/train/shards/data.list" ]; then
      fail "--shards $shards: no tars in $data/train/shards; run stage 0 with it"
    fi
    lists=(
      --data_type shard
      --train_data "$data/train/shards/data.list" --cv_data "$data/dev/shards/data.list"
    )
  fi
  # The same for both parts of the training.
  config_and_data=(
    --config "$config" "${lists[@]}" --cmvn "$data/global_cmvn"
    --units "$data/units.txt" "${tokenizer_flags[@]}"
  )

  # The first part, by CTC, from which all heads of a seed start.
  if [ "$base_steps" != 0 ]; then
    has_first_part=yes  # recipe.sh counts its trainings for the live line
    for seed in $seeds; do
      name=$(experiment_name base "$seed")
      start_training "$exp/$name.log" \
        "${parallel_wenet_hs[@]}" train --model_dir "$exp/$name" \
        "${config_and_data[@]}" --seed "$seed" \
        --head softmax \
        --override_config "${first_part_settings[@]}"
    done
    wait_for_trainings
  fi

  # The second part, once per head; without a first part the whole training.
  for seed in $seeds; do
    checkpoint_flags=()  # the weights that the heads of this seed start with
    if [ -n "$has_first_part" ]; then
      checkpoint_flags=(--checkpoint "$exp/$(experiment_name base "$seed")")
    fi
    for head_name in $head; do
      name=$(experiment_name "$head_name" "$seed")
      start_training "$exp/$name.log" \
        "${parallel_wenet_hs[@]}" train --model_dir "$exp/$name" \
        "${config_and_data[@]}" --seed "$seed" \
        --head "$head_name" --tree "$(tree_file "$seed")" \
        "${checkpoint_flags[@]}" \
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
