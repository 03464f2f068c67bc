# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
# What the grids of studies share: trainings over seeds, one per line, and the tables made from them. A grid.sh sets its
# own options and `tables`, sources this file, defines `cells`, prepares its data and calls `run_cells`.

minutes=100000                # no training starts after so many minutes
jobs=2                        # trainings at a time, one core each
list=false                    # true: only list the trainings that have no results

_option_files=("$0" "${BASH_SOURCE[0]}")
# shellcheck source=tools/parse_options.sh
. "${BASH_SOURCE[0]%/*}/parse_options.sh"

started=$(date +%s)
PATH="$(cd "${BASH_SOURCE[0]%/*}/.." && pwd)/.venv/bin:$PATH"

# Prints the options of run.sh for the training of a system with $seed, if it belongs to a chosen table, if the system
# has so many seeds, and if it has no results file.
cell() {  # TABLE SYSTEM SEEDS OPTIONS…
  [[ " $tables " == *" $1 "* ]] && [ "$seed" -le "$3" ] && [ ! -f "$here/results/$1/$2-seed$seed.json" ] || return 0
  echo "--results $here/results/$1 --seeds $seed ${*:4}"
}

# Runs the cells, $jobs at a time, each with the options that all share, and writes RESULTS.md.
run_cells() {  # OPTION…
  local _folders _running=0 _options _line _log _failed=0
  mkdir -p "$here/logs"
  while read -r _line; do
    if [ "$_running" -ge "$jobs" ]; then wait -n || _failed=1; _running=$((_running - 1)); fi
    [ $(($(date +%s) - started)) -lt $((60 * minutes)) ] || break
    read -ra _options <<< "$_line"
    _log=$here/logs/$(tr -c 'A-Za-z0-9.\n' _ <<< "${_line##*/results/}").log
    echo "$(date +%T) $_line"
    "$here/run.sh" --stage 2 "$@" "${_options[@]}" > "$_log" 2>&1 < /dev/null || { echo "failed: see $_log" >&2; exit 1; } &
    _running=$((_running + 1))
  done < <(cells)
  while [ "$_running" -gt 0 ]; do wait -n || _failed=1; _running=$((_running - 1)); done
  read -ra _folders <<< "$tables"
  wenet-hs report --tables "${_folders[@]/#/$here/results/}" --markdown "$here/RESULTS.md"
  return $_failed
}
