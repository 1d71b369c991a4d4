#!/usr/bin/env bash
# Proves docker-sandbox against a real sbx: doctor, create, run, list, stop.
# usage: scripts/live-docker-sandbox-smoke.sh [--docker-sandbox-cli PATH]
# CRABBOX_BIN names a crabbox that is built already; without it bin/crabbox is built.
# The last line is the result: classification=live_sbx_smoke_passed, environment_blocked, quota_blocked or
# diagnostic_only. Only the first exits with 0.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
flags=("$@")
slug=live-smoke-$(date +%s)-$$
made=false
verdict=
temp=$(mktemp -d)

finish() {
  local code=$?
  trap - EXIT
  if "$made"; then
    # Nothing that this run made stays. A lease that was never recorded is none (4).
    local stopped=0
    crabbox stop --provider docker-sandbox "${flags[@]}" "$slug" >"$temp/stop" 2>&1 </dev/null || stopped=$?
    if [ "$stopped" != 0 ] && [ "$stopped" != 4 ]; then
      cat "$temp/stop" >&2
      echo "the sandbox may still be there: crabbox stop --provider docker-sandbox $slug" >&2
    fi
  fi
  rm -rf "$temp"
  # The last line, whatever the stop said.
  [ -z "$verdict" ] || echo "$verdict" >&2
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

crabbox() { "$CRABBOX_BIN" "$@"; }

# classified NAME EXIT WORD... ends the smoke; the words are what failed.
classified() {
  local name=$1 code=$2
  shift 2
  verdict="classification=$name command=$(printf '%q ' "$@")exit=$code"
  exit "$code"
}

# invalid REASON WORD...: the command succeeded, and what it said is not what it should be.
invalid() {
  echo "$1" >&2
  shift
  show
  classified diagnostic_only 1 "$@"
}

show() { cat "$temp/out" "$temp/err" >&2 2>/dev/null || true; }

# What the failing command said, without the names that come from this directory: one called `quota` blocks nothing.
said() {
  local text
  text=$(cat "$temp/out" "$temp/err")
  printf '%s' "${text//"$root"/}" | sed -E 's/crabbox-[a-z0-9-]*-[0-9a-f]{6}//g'
}

# step ELSE WORD...: runs crabbox with the words. ELSE is what a failure is that its own words do not explain.
step() {
  local else=$1 code=0
  shift
  crabbox "$@" >"$temp/out" 2>"$temp/err" </dev/null || code=$?
  [ "$code" = 0 ] && return
  show
  if said | grep -Eqi 'quota|rate limit|capacity'; then
    classified quota_blocked "$code" crabbox "$@"
  elif said | grep -Eqi 'sbx not found|not logged in|login required|unauthorized|authentication|virtualization|hypervisor|kvm|control plane'; then
    classified environment_blocked "$code" crabbox "$@"
  fi
  classified "$else" "$code" crabbox "$@"
}

if [ -z "${CRABBOX_BIN:-}" ]; then
  command -v cargo >/dev/null || classified environment_blocked 127 scripts/build-bin
  scripts/build-bin || classified diagnostic_only $? scripts/build-bin
  CRABBOX_BIN=bin/crabbox
fi
if [ ! -f "$CRABBOX_BIN" ] || [ ! -x "$CRABBOX_BIN" ]; then
  echo "CRABBOX_BIN is no program" >&2
  classified environment_blocked 127 "$CRABBOX_BIN"
fi
CRABBOX_BIN=$(realpath "$CRABBOX_BIN")

doctor=(doctor --provider docker-sandbox "${flags[@]}")
step environment_blocked "${doctor[@]}"
grep -q sbx_version "$temp/out" "$temp/err" || invalid "doctor says nothing about sbx_version" crabbox "${doctor[@]}"

made=true
step diagnostic_only warmup --provider docker-sandbox "${flags[@]}" --slug "$slug"

run=(run --provider docker-sandbox "${flags[@]}" --id "$slug" --)
step diagnostic_only "${run[@]}" echo ok
[ "$(cat "$temp/out")" = ok ] || invalid "the command did not print ok" crabbox "${run[@]}" echo ok

step diagnostic_only "${run[@]}" pwd
workdir=$(sed -n 's/^provider=docker-sandbox .* workdir=\(.*\) sync_delegated=true$/\1/p' "$temp/err")
[ -n "$workdir" ] && [ "$(cat "$temp/out")" = "$workdir" ] ||
  invalid "the command did not run in ${workdir:-the announced directory}" crabbox "${run[@]}" pwd

list=(list --provider docker-sandbox "${flags[@]}" --json)
listed="\"slug\":[[:space:]]*\"$slug\""
step diagnostic_only "${list[@]}"
grep -Eq "$listed" "$temp/out" || invalid "$slug is not listed" crabbox "${list[@]}"

stop=(stop --provider docker-sandbox "${flags[@]}" "$slug")
step diagnostic_only "${stop[@]}"
step diagnostic_only "${list[@]}"
! grep -Eq "$listed" "$temp/out" || invalid "$slug is still listed" crabbox "${stop[@]}"
made=false

echo "classification=live_sbx_smoke_passed slug=$slug cleanup=complete"
