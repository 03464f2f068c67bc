# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Source this after the defaults: `--some-name value` sets $some_name, which the script must have given a default
# (`some_name=…` at the start of a line). `--help` prints the comment that opens the script, then the options with
# their defaults. All else is refused: an unknown option, a missing value, a stray word, or a stage that is not there
# (the default of `stop_stage` is the last one) ends the script with 2.
#   . tools/parse_options.sh

_parse_options() {
  local _option
  while [ $# -gt 0 ]; do
    case "$1" in
      --help | -h)
        sed -n -e '/^#!/d' -e '/^# SPDX/d' -e '/^#/!q' -e 's/^# \{0,1\}//p' "$0"
        echo "Options and their defaults:"
        sed -n -e '/parse_options\.sh"$/q' -e '/^here=/d' -e 's/^\([a-z][a-z0-9_]*\)=/  --\1 /p' "$0"
        exit 0
        ;;
      --*=*) _refuse_option "write '${1%%=*} ${1#*=}' instead of '$1'" ;;
      --[a-z]*) ;;
      *) _refuse_option "expected --name value, got '$1' (try --help)" ;;
    esac
    _option=${1#--}
    _option=${_option//-/_}
    # Only what the script itself declares: a variable of the environment is no option.
    if ! [[ $_option =~ ^[a-z][a-z0-9_]*$ ]] || ! grep -q "^$_option=" "$0"; then
      _refuse_option "unknown option '$1' (try --help)"
    fi
    case "${2-}" in --*) set -- "$1" ;; esac
    [ $# -ge 2 ] || _refuse_option "option '$1' needs a value"
    printf -v "$_option" '%s' "$2"
    shift 2
  done
}

_refuse_option() {
  echo "$0: $1" >&2
  exit 2
}

_check_stages() {
  local _number
  for _number in "${stage:=0}" "${stop_stage:=0}"; do
    [[ $_number =~ ^-?[0-9]+$ ]] || _refuse_option "--stage and --stop_stage are numbers, got '$_number'"
  done
  [ "$stage" -le "$_last_stage" ] || _refuse_option "there is no stage $stage; the last one is $_last_stage"
  [ "$stage" -le "$stop_stage" ] || _refuse_option "nothing to do from --stage $stage to --stop_stage $stop_stage"
}

_last_stage=${stop_stage-}
_parse_options "$@"
[ -z "$_last_stage" ] || _check_stages
unset _last_stage
unset -f _check_stages _parse_options _refuse_option
