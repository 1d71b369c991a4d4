#!/usr/bin/env bash
# Proves opensandbox against a server: doctor, create, archive sync, variables off every command line, reuse with staged
# replacement, list, status, stop.
# usage: CRABBOX_OPENSANDBOX_API_KEY=... CRABBOX_OPENSANDBOX_API_URL=... scripts/live-opensandbox-smoke.sh [FLAGS FOR crabbox]
# CRABBOX_BIN names a crabbox that is built already; without it bin/crabbox is built.
# Prints exactly one classification as its last line: live_opensandbox_smoke_passed, environment_blocked, quota_blocked or
# diagnostic_only, and exits with 0 for each of them; what failed is on stderr.
set -euo pipefail
cd "$(dirname "$0")/.."
flags=("$@")
slug=live-osb-$(date +%s)-$$
made=false
verdict=diagnostic_only
temp=$(mktemp -d)

finish() {
  trap - EXIT
  if "$made"; then
    # Nothing that this run made stays. A lease that was never recorded is none (4).
    local stopped=0
    crabbox stop "$slug" >"$temp/stop" 2>&1 </dev/null || stopped=$?
    if [ "$stopped" != 0 ] && [ "$stopped" != 4 ]; then
      cat "$temp/stop" >&2
      echo "the sandbox may still be there: crabbox stop --provider opensandbox $slug" >&2
      [ "$verdict" != live_opensandbox_smoke_passed ] || verdict=diagnostic_only
    fi
  fi
  rm -rf "$temp"
  echo "classification=$verdict"
  exit 0
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

crabbox() {
  local command=$1
  shift
  (cd "$temp/repo" && "$CRABBOX_BIN" "$command" --provider opensandbox "${flags[@]}" "$@")
}

ends() {
  verdict=$1
  exit 0
}

# invalid REASON: the command succeeded, and what it said is not what it should be.
invalid() {
  echo "$1" >&2
  cat "$temp/out" "$temp/err" >&2
  ends diagnostic_only
}

# step ELSE WORD...: runs crabbox. ELSE is what a failure is that its own words do not explain.
step() {
  local else=$1 code=0
  shift
  crabbox "$@" >"$temp/out" 2>"$temp/err" </dev/null || code=$?
  [ "$code" = 0 ] && return
  cat "$temp/out" "$temp/err" >&2
  echo "crabbox $1 exited $code" >&2
  if grep -Eqi 'quota|rate limit|capacity|HTTP 429|QUOTA_EXCEEDED|POOL_' "$temp/out" "$temp/err"; then
    ends quota_blocked
  elif grep -Eqi 'HTTP 40[13]|cannot connect|TLS with|needs (a trusted API URL|an API key)|IMAGE_PULL_FAILED' "$temp/out" "$temp/err"; then
    ends environment_blocked
  fi
  ends "$else"
}

for name in API_KEY API_URL; do
  own=CRABBOX_OPENSANDBOX_$name other=OPEN_SANDBOX_$name
  if [ -z "${!own:-}" ] && [ -z "${!other:-}" ]; then
    echo "$own is not set" >&2
    ends environment_blocked
  fi
done
if [ -z "${CRABBOX_BIN:-}" ]; then
  command -v cargo >/dev/null || ends environment_blocked
  scripts/build-bin >&2 || ends diagnostic_only
  CRABBOX_BIN=bin/crabbox
fi
if [ ! -f "$CRABBOX_BIN" ] || [ ! -x "$CRABBOX_BIN" ]; then
  echo "CRABBOX_BIN is no program" >&2
  ends environment_blocked
fi
CRABBOX_BIN=$(realpath "$CRABBOX_BIN")
command -v git >/dev/null || { echo "git is not installed" >&2; ends environment_blocked; }

mkdir "$temp/repo"
git init -q "$temp/repo"
echo first >"$temp/repo/first.txt"
echo stale >"$temp/repo/stale.txt"

step environment_blocked doctor

made=true
export SMOKE_TOKEN=smoke-$RANDOM$RANDOM
# Long enough for the default budgets, and no longer: a sandbox that is lost ends soon. The settings of the user do not count.
export CRABBOX_SYNC_DELETE=true
# The arguments of every process of the sandbox, compared by the shell itself: no process gets the value as an argument.
look='words=$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\000" " "); case $words in *"$SMOKE_TOKEN"*) echo "it is an argument" ;;'
look+=' *" cat first.txt stale.txt"*) echo "off argv" ;; *) echo "no arguments can be read" ;; esac'
step diagnostic_only run --keep --slug "$slug" --ttl 30m --allow-env SMOKE_TOKEN -- \
  sh -c "cat first.txt stale.txt; printenv SMOKE_TOKEN; $look"
[ "$(cat "$temp/out")" = "first
stale
$SMOKE_TOKEN
off argv" ] || invalid "the first run did not see the repository and the variable, or the variable is on a command line"
! grep -q "$SMOKE_TOKEN" "$temp/err" || invalid "the value of the variable was shown"

rm "$temp/repo/stale.txt"
echo second >"$temp/repo/second.txt"
step diagnostic_only run --id "$slug" --timing-json -- sh -c 'cat second.txt; [ ! -e stale.txt ]'
[ "$(cat "$temp/out")" = second ] || invalid "the second run did not see the new file"
grep -q '"name":"replace"' "$temp/err" || invalid "the tree was not replaced"

step diagnostic_only list --json
grep -Eq "\"slug\":[[:space:]]*\"$slug\"" "$temp/out" || invalid "$slug is not listed"
step diagnostic_only status --id "$slug" --wait --json
grep -Eq '"ready":[[:space:]]*true' "$temp/out" || invalid "$slug is not ready"

step diagnostic_only stop "$slug"
step diagnostic_only list --json
! grep -Eq "\"slug\":[[:space:]]*\"$slug\"" "$temp/out" || invalid "$slug is still listed"
made=false
ends live_opensandbox_smoke_passed
