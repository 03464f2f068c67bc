#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2086  # lists of names are words
# shellcheck disable=SC2154  # read_options sets the variables of the options
set -euo pipefail

usage() {
  cat << 'END'
UCLA Phonetic Corpus: phones of languages never heard in training,
softmax against H-Softmax (PER per language).
  ./run.sh --corpus /data/ucla                        all stages
  ./run.sh --corpus /data/ucla --stage 2 --head "hsoftmax class" --tree articulatory
                                                      phones by their features
  ./run.sh --corpus /data/ucla --dev_langs "wuu cpn ell" --eval_set dev \
           --data data-dev --exp exp-dev              for choices
  ./run.sh --corpus /data/ucla --pretrain 14 --base_steps 3000 \
           --data data-simulated-14 --exp exp-simulated-14
The last one is real + simulated: the first part of training on 14 hours of simulated words.
Stages: 0 lists, 1 units, 2 trees, 3 feature statistics, 4 training, 5 averaging, 6 decoding,
        7 scores, 8 report.
END
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
# shellcheck source=tools/recipe.sh
. "$root/tools/recipe.sh"

option corpus "" "one folder for each language: text.txt, audio/"
option test_langs "bin sbc mal kea klu aeb mak fin abk ace" "held out from training and units"
option dev_langs "" \
  'languages held out for choices, such as "wuu cpn ell col eus" (README); else 5 % of the words'
option train_share 1 \
  "share of the training utterances, for learning curves; 0.25 is a part of 0.5"
option pretrain 0 \
  "hours of simulated words for the first part of training; 0: the real speech"
option exclude_langs "dra sem cus poz map roa la ht ia lfn fi et smj" \
  "voices that do not speak: relatives of the test languages"
option encoder "" \
  "folder of Whisper's encoder (docs/pretrained.md); --config is conf/ucla_whisper.yaml then"
option config "$root/conf/ucla.yaml" "YAML of the experiment"
option base_steps 1500 \
  "of the first part of training, with CTC alone, from which all heads start; 0: none"
option ctc_tree "" \
  "H-Softmax for CTC too, over this tree.json (wenet-hs tree build --blank_share 0.7);" \
  '"": softmax'
option inventory "" \
  "known units of each language (wenet-hs units --inventory): no other unit is recognised"
option place_unseen "" \
  "where units of --inventory are placed that the model does not have: articulatory"
option modes "ctc_greedy_search ctc_prefix_beam_search attention attention_rescoring joint" \
  "of decoding; the results are of joint"
option unit phone "char, phone, or bpe:N with N pieces"
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
data_options="corpus test_langs dev_langs train_share pretrain exclude_langs data_seed unit"
exp_options="base_steps ctc_tree encoder data config"

# --encoder: a config and settings of its own. The outputs of the encoder are kept in a folder.
training_config=$config
training_settings=("${override_settings[@]}")
if [ -n "$encoder" ]; then
  if [ "$config" = "$root/conf/ucla.yaml" ]; then
    training_config=$root/conf/ucla_whisper.yaml
  fi
  training_settings=(
    "encoder_conf.path=$encoder"
    "encoder_conf.cache=$data/encoder_outputs"
    "${override_settings[@]}"
  )
fi

# --ctc_tree: CTC has a tree too.
ctc_flags=()
if [ -n "$ctc_tree" ]; then
  ctc_flags=(--ctc_head hsoftmax --ctc_tree "$ctc_tree")
fi

# --inventory, --place_unseen: decoding with known units has a folder of its own for its texts.
known_units_flags=()
if [ -n "$inventory" ]; then
  known_units_flags+=(--inventory "$inventory")
  decoding_folder+=-inventory
fi
if [ -n "$place_unseen" ]; then
  known_units_flags+=(--place_unseen "$place_unseen")
  decoding_folder+=-$place_unseen
fi

check_options --data_options $data_options --exp_options $exp_options \
  --config "$training_config" --override_config "${training_settings[@]}" \
  --head $head --tree "$tree" --seeds $seeds \
  --modes $modes --unit "$unit" \
  "${ctc_flags[@]}" "${known_units_flags[@]}"

# What the first part keeps between epochs. The real words fit into memory as features, those of
# --pretrain do not. An encoder's outputs are kept on the disk; those of --pretrain at one speed
# only, as they take 19 GB for 14 hours.
if [ "$pretrain" = 0 ] && [ -z "$encoder" ]; then
  cache_settings=(dataset_conf.cache_features=true)
elif [ "$pretrain" = 0 ]; then
  cache_settings=()
elif [ -z "$encoder" ]; then
  cache_settings=(dataset_conf.cache_features=false)
else
  cache_settings=(dataset_conf.speed_perturb=false)
fi

# The first part of training, by CTC. Of two equal settings the later one counts.
first_part_settings=(
  scheduler_conf.warmup_steps=400
  "${training_settings[@]}" "${cache_settings[@]}"
  "model_conf.ctc_only_steps=$base_steps"
  "scheduler_conf.total_steps=$base_steps"
)
if [ "$base_steps" != 0 ]; then
  wenet-hs check-options --config "$training_config" --override_config "${first_part_settings[@]}"
fi

# --pretrain: the first part is trained on other lists, and the model has the units of both.
first_part_data=$data
lists_of_units=("$data/train/data.list")
if [ "$pretrain" != 0 ]; then
  if [ "$base_steps" = 0 ] || [ "$unit" != phone ]; then
    fail "--pretrain $pretrain: needs --base_steps above 0, and --unit phone"
  fi
  first_part_data=$data/simulated
  lists_of_units+=("$data/simulated/train/data.list")
fi

if begin_stage 0 "data lists"; then
  if [ -z "$corpus" ]; then
    fail "--corpus DIR is required (try --help)"
  fi
  wenet-hs prepare ucla --corpus "$corpus" --test_langs "$test_langs" --dev_langs "$dev_langs" \
    --train_share "$train_share" --seed "$data_seed" --out "$data"
  if [ "$pretrain" != 0 ]; then
    wenet-hs prepare synthetic --unit phone --hours "$pretrain" --exclude_langs "$exclude_langs" \
      --match_list "$data/train/data.list" --seed "$data_seed" --out "$data/simulated"
  fi
  keep_options "$data" $data_options
fi

if begin_stage 1 "units"; then
  wenet-hs units --data_list "${lists_of_units[@]}" "${unit_flags[@]}" --out "$data/units.txt"
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
    --config "$training_config" --override_config "${training_settings[@]}" \
    --out "$data/global_cmvn"
fi

if begin_stage 4 "training (logs: $exp/*.log)"; then
  keep_options "$exp" $exp_options
  # The same for both parts of the training. With Whisper's encoder --cmvn has no effect.
  # With --nproc N a step has the batches of N processes, so N times the speech.
  config_and_units=(
    --config "$training_config" --cmvn "$data/global_cmvn"
    --units "$data/units.txt" "${tokenizer_flags[@]}"
    "${ctc_flags[@]}"
  )

  # The first part, by CTC, from which all heads of a seed start.
  if [ "$base_steps" != 0 ]; then
    has_first_part=yes  # recipe.sh counts its trainings for the live line
    for seed in $seeds; do
      name=$(experiment_name base "$seed")
      start_training "$exp/$name.log" \
        "${parallel_wenet_hs[@]}" train --model_dir "$exp/$name" \
        "${config_and_units[@]}" --seed "$seed" \
        --train_data "$first_part_data/train/data.list" \
        --cv_data "$first_part_data/dev/data.list" \
        --head softmax \
        --override_config "${first_part_settings[@]}"
    done
    wait_for_trainings
  fi

  # The second part, once per head.
  for seed in $seeds; do
    checkpoint_flags=()  # the weights that the heads of this seed start with
    if [ -n "$has_first_part" ]; then
      checkpoint_flags=(--checkpoint "$exp/$(experiment_name base "$seed")")
    fi
    for head_name in $head; do
      name=$(experiment_name "$head_name" "$seed")
      start_training "$exp/$name.log" \
        "${parallel_wenet_hs[@]}" train --model_dir "$exp/$name" \
        "${config_and_units[@]}" --seed "$seed" \
        --train_data "$data/train/data.list" --cv_data "$data/dev/data.list" \
        --head "$head_name" --tree "$(tree_file "$seed")" \
        "${checkpoint_flags[@]}" \
        --override_config "${training_settings[@]}"
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
      "${chunk_flags[@]}" "${known_units_flags[@]}" --modes $modes
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
