#!/usr/bin/env bash
# Configures (once) and builds TARGET in build/release, quietly: build.sh TARGET [CMake options]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
target=$1
shift
build=$root/build/release
log=$build/build.log
mkdir -p "$build"
if [[ ! -f $build/build.ninja || $# -gt 0 ]]; then
  (cd "$root" && cmake --preset release "$@") >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
fi
if ! ninja -C "$build" -n "$target" | grep -q 'no work to do'; then
  echo "Building $target; this takes a few minutes the first time." >&2
  if [[ -t 2 ]]; then
    ninja -C "$build" "$target" >&2
  else
    ninja -C "$build" "$target" >"$log" 2>&1 || { tail -n 60 "$log" >&2; exit 1; }
  fi
fi
