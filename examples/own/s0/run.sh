#!/usr/bin/env bash
# Your own recordings: from annotations to a recogniser, its error rates and a report.
#   ./run.sh --corpus my.tsv --lang mdw                     a table; others: --data data-2 --exp exp-2
#   ./run.sh --elan fieldwork --prepare '--tier "utterance@*"'    ELAN files; --praat, --kaldi, --folder: other forms
#   ./run.sh --corpus my.tsv --base exp/of_another_language --exp exp-adapted   adapts a trained model
#   ./run.sh --corpus my.tsv --encoder whisper-base --exp exp-whisper           starts from a published encoder
# Stages: 0 lists and their check, 1 units, 2 trees, 3 feature statistics, 4 training, 5 averaging, 6 decoding, 7 scores, 8 report.
# shellcheck disable=SC2034,SC2086,SC2206  # the forms of annotations are read by name; lists of names are words
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) root=$(cd "$(dirname "$0")/../../.." && pwd)
# shellcheck source=tools/recipe.sh
. "$root/tools/recipe.sh"
corpus=                       # table: CSV, TSV or JSON Lines
elan=                         # or an .eaf file, or a folder with them
praat=                        # or a .TextGrid file, or a folder with them
kaldi=                        # or a data folder of Kaldi
folder=                       # or a folder of audio files with transcripts
lang=und                      # language, by code or name: decides how text is normalised
prepare=                      # more options of `wenet-hs prepare`, such as '--columns "text=Words"'
min_minutes=10                # stop with less training speech than this (the least in RESULTS.md); 0: never
size=auto                     # of model and training: tiny, small, medium, large (conf/own_sizes.txt); auto: by the hours
base_steps=                   # of the first part of training, by CTC, from which all heads start; 0: none (default: by size)
base=                         # folder of a trained model to start from, instead of the first part of training
encoder=                      # folder of a pretrained encoder; config and steps follow from it (docs/pretrained.md)
only_time=                    # yes: stage 4 only measures how long a training takes on this computer, in about 20 s
head=softmax                  # softmax, hsoftmax, class, adaptive: one experiment per head and seed
modes=                        # of decoding (wenet-hs recognize --help); default: of CTC, and with a decoder attention_rescoring and joint
config=$root/conf/own.yaml    # YAML of the experiment
OF_DATA="corpus elan praat kaldi folder lang prepare" OF_EXP="size base base_steps encoder"
read_options "$@"
[[ $size =~ ^(auto|tiny|small|medium|large)$ ]] || fail "--size $size: must be tiny, small, medium, large or auto"
[[ -z $base || $config = "$root/conf/own.yaml" ]] || fail "--config $config: --base has the settings; change them with --override"
[[ -z $encoder || -z $base && $size = auto ]] || fail "--encoder $encoder: has a config of its own; leave out --base and --size"
yaml=${base:+$base/train.yaml} yaml=${yaml:-$config} cmvn=(--cmvn "$data/global_cmvn")  # the adapted model has the same layers
[ -z "$encoder" ] || found=$(python "$root/tools/before_training.py" config --encoder "$encoder" --config "$config" --chosen "$exp/config_of_encoder.txt" --outputs "$data/encoder_outputs") || exit 2
[ -z "$encoder" ] || { mapfile -t found <<< "$found"; yaml=${found[0]} more=("${found[@]:1}" "${more[@]}"); }; ! grep -qs '^encoder: pretrained' "$yaml" || cmvn=()
[ -n "$modes" ] || { modes="ctc_greedy_search ctc_prefix_beam_search"; grep -qs '^decoder: none' "$yaml" || modes+=" attention_rescoring joint"; }
wenet-hs check-options --config "$yaml" ${base:+--checkpoint "$base"} --head $head --tree "$tree" --modes $modes --unit "$unit" --seeds $seeds --override_config "${more[@]}"

if at 0 "data lists"; then
  given=(); for form in corpus elan praat kaldi folder; do [ -z "${!form}" ] || given+=("$form"); done
  [ "${#given[@]}" = 1 ] || fail "give one of --corpus TABLE, --elan, --praat, --kaldi, --folder (try --help)"
  form=${given[0]} words=$(xargs -r -n 1 printf '%s\n' <<< "$prepare") || fail "--prepare $prepare: a quote has no end"
  [ -z "$words" ] || mapfile -t options <<< "$words"
  wenet-hs prepare "${form/corpus/table}" --corpus "${!form}" --lang "$lang" --unit "${kind/bpe/char}" "${options[@]}" --seed "$data_seed" --out "$data"
  wenet-hs check "$data"/{train,dev,test}/data.list --config "$yaml" --unit "${kind/bpe/char}" --min_minutes "$min_minutes" \
    --out "$data/check.tsv" --html "$data/check.html" || { code=$?; [ $code = 3 ] || exit $code; }  # 3: faults, which are left out
  keep_options data
fi

if at 1 "units"; then wenet-hs units --data_list "$data/train/data.list" --kind "$kind" "${pieces[@]}" "${bpe[@]}" --out "$data/units.txt"; fi
if at 2 "trees"; then
  for seed in $seeds; do
    [[ $tree = *.json ]] || wenet-hs tree build --kind "$tree" --seed "$seed" --tokenizer "$kind" "${bpe[@]}" \
      --units "$data/units.txt" --data_list "$data/train/data.list" --out "$(tree_of "$seed")"
  done
fi

if [ ${#cmvn[@]} != 0 ] && at 3 "feature statistics"; then "${wenet_hs[@]}" cmvn --data_list "$data/train/data.list" --config "$yaml" --out "$data/global_cmvn" --override_config "${more[@]}"; fi

if at 4 "training (logs: $exp/*.log)"; then
  [ -f "$data/stats.json" ] || fail "no lists in $data; run stage 0"
  [ -n "$only_time" ] || keep_options exp; [ -z "$encoder" ] || { size=${yaml##*/}; [ -n "$only_time" ] || echo "$size" > "$exp/config_of_encoder.txt"; }
  hours=$(python -I -c 'import json, sys; print(json.load(open(sys.argv[1]))["total"]["hours"]["train"])' "$data/stats.json")
  read -r size _ first steps settings <<< "$(awk -v size="$size" -v hours="$hours" \
    '!/^#/ && (size == "auto" || $1 == size) && (size !~ /auto|yaml/ || hours < $2) { print; exit }' "$root/conf/own_sizes.txt")"
  [ -n "$steps" ] || fail "--config $config: conf/own_sizes.txt has no steps for ${yaml##*/}; add a line"
  [ -z "$base" ] || { base_steps=0 settings=$(sed -n 's/^adapted *//p' "$root/conf/own_sizes.txt"); }
  : "${base_steps:=$first}"
  echo "$hours hours of training speech: size $size, $base_steps + $steps steps${base:+ from $base, whose layers stay}"
  train=("${wenet_hs[@]}" train --config "$yaml" --train_data "$data/train/data.list" --cv_data "$data/dev/data.list"
    "${cmvn[@]}" --units "$data/units.txt" --tokenizer "$kind" "${bpe[@]}"
    --override_config $settings "scheduler_conf.total_steps=$steps" "save_interval=$((steps / 12))" "${more[@]}")
  [ -z "$encoder$only_time" ] || OMP_NUM_THREADS=$threads python "$root/tools/before_training.py" time --first_steps "$base_steps" --hours "$hours" "${train[@]}"; [ -z "$only_time" ] || exit 0
  for seed in $seeds; do  # the first part
    [ "$base_steps" = 0 ] || beside "$exp/$(name_of base "$seed").log" "${train[@]}" "model_conf.ctc_only_steps=$base_steps" \
      "scheduler_conf.total_steps=$base_steps" --model_dir "$exp/$(name_of base "$seed")" --seed "$seed" --head softmax
  done
  wait_below 1  # the heads start from the first part
  for seed in $seeds; do
    start=(); [ "$base_steps$base" = 0 ] || start=(--checkpoint "${base:-$exp/$(name_of base "$seed")}")
    for one in $head; do
      name=$(name_of "$one" "$seed"); beside "$exp/$name.log" "${train[@]}" --model_dir "$exp/$name" --seed "$seed" --head "$one" --tree "$(tree_of "$seed")" "${start[@]}"
    done
  done
  wait_for_trainings
fi
for dir in "${experiments[@]}"; do
  if at 5 "average of $dir"; then wenet-hs average --model_dir "$dir" --num "$average_num"; fi
  if at 6 "decoding with $dir"; then "${wenet_hs[@]}" recognize --model_dir "$dir" --test_data "$data/$eval_set/data.list" --result_dir "$dir/$decoded" "${chunks[@]}" --modes $modes; fi
  if at 7 "scores of $dir ($decoded/MODE/score.txt)"; then
    wenet-hs score --metric "$metric" --by lang --ref "$data/$eval_set/text" --data_list "$data/$eval_set/data.list" \
      --hyp "$dir/$decoded" --name "${dir##*/}" > /dev/null
  fi
done

if at 8 "report"; then
  wenet-hs report "${experiments[@]/#/--exp=}" --stats "$data/stats.json" --data_list "$data/$eval_set/data.list" \
    --test "$decoded" --out "$exp/report.html" ${results:+--results "$results"}
fi
