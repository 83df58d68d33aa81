#!/usr/bin/env bash
# Configures and builds TARGET in build/release, quietly: build.sh TARGET
# "all" includes the tests, for which GoogleTest must be installed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
target=$1
build=$root/build/release
log=$build/build.log
mkdir -p "$build"
# Configured before GoogleTest was there: the tests are not in it.
if [[ ! -f $build/build.ninja ]] || { [[ $target == all ]] && ! grep -q engine_test "$build/build.ninja"; }; then
  (cd "$root" && cmake --preset release) >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
fi
if ! ninja -C "$build" -n "$target" | grep -q 'no work to do'; then
  echo "Building $target; this takes a few minutes the first time." >&2
  if [[ -t 2 ]]; then
    ninja -C "$build" "$target" >&2
  else
    ninja -C "$build" "$target" >"$log" 2>&1 || { tail -n 60 "$log" >&2; exit 1; }
  fi
fi
