#!/usr/bin/env bash
# Your own recordings: from annotations to a recogniser, its error rates and a report.
#   ./run.sh --corpus my.tsv --lang mdw                     a table of audio files and transcripts
#   ./run.sh --elan fieldwork --prepare '--tier "utt@*"'    ELAN files; options of `wenet-hs prepare elan`
#   ./run.sh --praat DIR    ./run.sh --kaldi DIR    ./run.sh --folder DIR
#   ./run.sh --corpus my.tsv --head "softmax hsoftmax" --seeds "1 2 3"    two output layers, three trainings each
#   ./run.sh --corpus my.tsv --unit phone                   phonetic transcripts, spaces between the phones
#   ./run.sh --corpus my.tsv --base exp/of_another_language adapts a trained model; its units are found by their symbols
#   ./run.sh --corpus my.tsv --size small                   instead of the size that the hours of speech suggest
# Stages: 0 lists and their check, 1 units, 2 tree, 3 feature statistics, 4 training, 5 averaging, 6 decoding, 7 scores, 8 report.

# shellcheck disable=SC2034  # the forms of annotations are read by name
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
corpus=                       # table: CSV, TSV or JSON Lines
elan=                         # or an .eaf file, or a folder with them
praat=                        # or a .TextGrid file, or a folder with them
kaldi=                        # or a data folder of Kaldi
folder=                       # or a folder of audio files with transcripts
lang=und                      # language, by code or name: decides how text is normalised
prepare=                      # more options of `wenet-hs prepare`, such as '--columns "text=Words"'
size=auto                     # of model and training: tiny, small, medium, large; auto: by the hours (tools/own_settings.py)
min_minutes=                  # stop with less training speech than this (default: 10, the least in RESULTS.md); 0: never
base=                         # folder of a trained model to start from, instead of the first part of training
head=softmax                  # softmax, hsoftmax, class, adaptive: one experiment per head and seed
modes="ctc_greedy_search ctc_prefix_beam_search attention_rescoring joint"
base_override=by_size         # settings of the first part of training, as "key=value key=value"; "": none
config=$here/../../../conf/own.yaml  # YAML of the experiment
average_num=5                 # checkpoints whose mean is the final model
DATA_OPTIONS="elan praat kaldi folder lang"
MORE_OPTIONS="size"
# shellcheck source=tools/recipe.sh
. "$here/../../../tools/recipe.sh"

for form in corpus elan praat kaldi folder; do  # the same recordings have the same path, wherever the command runs
  [ ! -e "${!form}" ] || printf -v "$form" '%s' "$(realpath -s "${!form}")"
done
kind_of_unit() { if [ "$unit" = phone ]; then echo phone; else echo char; fi; }
list_options() { echo "--prepare $prepare"; echo "--unit $(kind_of_unit)"; }
prepare_data() {
  local _form _given=() _options=() _kind _code
  _kind=$(kind_of_unit)
  for _form in corpus elan praat kaldi folder; do [ -z "${!_form}" ] || _given+=("$_form"); done
  [ ${#_given[@]} = 1 ] || _fail "give one of --corpus TABLE, --elan, --praat, --kaldi, --folder (try --help)"
  _form=${_given[0]}
  eval "_options=($prepare)"
  if [ "$_form" = corpus ]; then _options+=(--table "$corpus"); else _options+=(--corpus "${!_form}"); fi
  wenet-hs prepare "${_form/corpus/table}" --lang "$lang" --unit "$_kind" --seed "$data_seed" --out "$data" "${_options[@]}"
  wenet-hs check "$data"/{train,dev,test}/data.list --config "$config" --unit "$_kind" --out "$data/check.tsv" \
    --html "$data/check.html" ${min_minutes:+--min_minutes "$min_minutes"} \
    || { _code=$?; [ "$_code" = 3 ] || exit "$_code"; echo "$data/check.html: utterances with faults, which training leaves out"; }
}

choose_size() {
  local _lines
  [ -f "$data/stats.json" ] || _fail "no $data/stats.json; run stage 0 first"
  mapfile -t _lines < <(python "$here/../../../tools/own_settings.py" --stats "$data/stats.json" --size "$size" ${base:+--base "$base"} ${min_minutes:+--min_minutes "$min_minutes"})
  [ ${#_lines[@]} = 3 ] || exit 2
  echo "${_lines[0]}"
  [ "$base_override" != by_size ] || base_override=${_lines[1]}
  settings=${_lines[2]}
}
corpus_settings() { tr ' ' '\n' <<< "$settings"; }

if [ -n "$base" ]; then
  [ -f "$base/final.pt" ] || _fail "--base $base: no final.pt there; give the folder of a trained model"
  base_model=$base base_override='' config=$base/train.yaml _default_config=$base/train.yaml variant=-from_$(basename "$base")
fi
[[ $size =~ ^(auto|tiny|small|medium|large)$ ]] || _fail "--size $size: must be tiny, small, medium, large or auto"
[ "$size" = auto ] || variant=${variant:-}-$size
last_stage=$stop_stage
if [ "$stage" = 0 ]; then  # the size of the model depends on the hours
  stop_stage=0
  run_stages
  stage=1 stop_stage=$last_stage
fi
[ "$last_stage" != 0 ] || exit 0
choose_size
run_stages
