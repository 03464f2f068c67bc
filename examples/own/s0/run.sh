#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2086  # lists of names are words
# shellcheck disable=SC2154  # read_options sets the variables of the options
set -euo pipefail

usage() {
  cat << 'END'
Your own recordings: from annotations to a recogniser, its error rates and a report.
  ./run.sh --corpus my.tsv --lang mdw     a table; others: --data data-2 --exp exp-2
  ./run.sh --elan fieldwork --prepare '--tier "utterance@*"'
                                          ELAN files; --praat, --kaldi, --folder: other forms
  ./run.sh --corpus my.tsv --base exp/of_another_language --exp exp-adapted
                                          adapts a trained model
  ./run.sh --corpus my.tsv --encoder whisper-base --exp exp-whisper
                                          starts from a published encoder
Stages: 0 lists and their check, 1 units, 2 trees, 3 feature statistics, 4 training, 5 averaging,
        6 decoding, 7 scores, 8 report.
END
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
# shellcheck source=tools/recipe.sh
. "$root/tools/recipe.sh"

option corpus "" "table: CSV, TSV or JSON Lines"
option elan "" "or an .eaf file, or a folder with them"
option praat "" "or a .TextGrid file, or a folder with them"
option kaldi "" "or a data folder of Kaldi"
option folder "" "or a folder of audio files with transcripts"
option lang und "language, by code or name: decides how text is normalised"
option prepare "" "more options of \`wenet-hs prepare\`, such as '--columns \"text=Words\"'"
option min_minutes 10 "stop with less training speech than this (the least in RESULTS.md); 0: never"
option size auto \
  "of model and training: tiny, small, medium, large (conf/own_sizes.yaml); auto: by the hours"
option base_steps "" \
  "of the first part of training, by CTC, from which all heads start; 0: none (default: by size)"
option base "" "folder of a trained model to start from, instead of the first part of training"
option encoder "" \
  "folder of a pretrained encoder; config and steps follow from it (docs/pretrained.md)"
option only_time "" \
  "yes: stage 4 only measures how long a training takes on this computer, in about 20 s"
option head softmax "output layers (wenet-hs train --help): one experiment per head and seed"
option modes auto \
  "of decoding (wenet-hs recognize --help);" \
  "auto: of CTC, and with a decoder attention_rescoring and joint"
option config "$root/conf/own.yaml" "YAML of the experiment"
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
data_options="corpus elan praat kaldi folder lang prepare data_seed unit"
exp_options="size base base_steps encoder data config"

check_options --data_options $data_options --exp_options $exp_options \
  --config "$config" --base "$base" --encoder "$encoder" --size "$size" \
  --override_config "${override_settings[@]}" \
  --head $head --tree "$tree" --seeds $seeds \
  --modes $modes --unit "$unit"

make_plan() {  # writes the config of the training, with its size, steps and expected time
  # That is $exp/plan.yaml, which may be edited. If the training has a first part, by CTC, the
  # config of that part follows from the plan: $exp/first_part.yaml. A plan that is there is kept.
  # With the flag --only_time nothing is written: the time is measured and printed.
  wenet-hs plan "$@" --data "$data" --unit "$unit" --out "$exp" \
    --config "$config" --size "$size" --base "$base" --encoder "$encoder" \
    --base_steps "$base_steps" --threads "$threads" \
    --override_config "${override_settings[@]}"
}

if begin_stage 0 "data lists"; then
  recordings=()  # the form of the annotations, and their path
  if [ -n "$corpus" ]; then
    recordings+=(table --corpus "$corpus")
  fi
  if [ -n "$elan" ]; then
    recordings+=(elan --corpus "$elan")
  fi
  if [ -n "$praat" ]; then
    recordings+=(praat --corpus "$praat")
  fi
  if [ -n "$kaldi" ]; then
    recordings+=(kaldi --corpus "$kaldi")
  fi
  if [ -n "$folder" ]; then
    recordings+=(folder --corpus "$folder")
  fi
  if [ "${#recordings[@]}" != 3 ]; then  # three words per form: none is given, or several are
    fail "give one of --corpus TABLE, --elan, --praat, --kaldi, --folder (try --help)"
  fi
  # The words of --prepare, in which quotes keep words together: xargs prints each on a line.
  # A quote without an end was refused by check_options.
  mapfile -t prepare_flags < <(xargs -r -n 1 printf '%s\n' <<< "$prepare")
  text_unit=$unit_kind  # how text is normalised: word pieces are made of characters
  if [ "$unit_kind" = bpe ]; then
    text_unit=char
  fi
  wenet-hs prepare "${recordings[@]}" --lang "$lang" --unit "$text_unit" "${prepare_flags[@]}" \
    --seed "$data_seed" --out "$data"

  # The check ends with 3 if it finds faults in recordings, which are left out.
  check_code=0
  wenet-hs check "$data/train/data.list" "$data/dev/data.list" "$data/test/data.list" \
    --config "$config" --base "$base" --encoder "$encoder" \
    --unit "$text_unit" --min_minutes "$min_minutes" \
    --out "$data/check.tsv" --html "$data/check.html" || check_code=$?
  if [ "$check_code" != 0 ] && [ "$check_code" != 3 ]; then
    exit "$check_code"
  fi
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
  make_plan
  "${parallel_wenet_hs[@]}" cmvn --data_list "$data/train/data.list" \
    --config "$exp/plan.yaml" --override_config "${override_settings[@]}" \
    --out "$data/global_cmvn"
fi

if begin_stage 4 "training (logs: $exp/*.log)"; then
  if [ -n "$only_time" ]; then
    make_plan --only_time
    exit
  fi
  make_plan  # stage 3 may have been left out
  keep_options "$exp" $exp_options
  # The same for both parts of the training. A pretrained encoder needs no feature statistics.
  data_and_units=(
    --train_data "$data/train/data.list" --cv_data "$data/dev/data.list"
    --cmvn "$data/global_cmvn"
    --units "$data/units.txt" "${tokenizer_flags[@]}"
  )

  # The first part, by CTC, from which all heads of a seed start.
  if [ -f "$exp/first_part.yaml" ] && [ -z "$base" ]; then
    has_first_part=yes  # recipe.sh counts its trainings for the live line
    for seed in $seeds; do
      name=$(experiment_name base "$seed")
      start_training "$exp/$name.log" \
        "${parallel_wenet_hs[@]}" train --model_dir "$exp/$name" \
        --config "$exp/first_part.yaml" --seed "$seed" \
        "${data_and_units[@]}" \
        --head softmax
    done
    wait_for_trainings
  fi

  # The second part, once per head.
  for seed in $seeds; do
    checkpoint_flags=()  # the weights that the heads of this seed start with
    if [ -n "$base" ]; then
      checkpoint_flags=(--checkpoint "$base")
    elif [ -n "$has_first_part" ]; then
      checkpoint_flags=(--checkpoint "$exp/$(experiment_name base "$seed")")
    fi
    for head_name in $head; do
      name=$(experiment_name "$head_name" "$seed")
      # --override_config: the plan has these settings; a training that goes on may have others.
      start_training "$exp/$name.log" \
        "${parallel_wenet_hs[@]}" train --model_dir "$exp/$name" \
        --config "$exp/plan.yaml" --seed "$seed" \
        "${data_and_units[@]}" \
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
