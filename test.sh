#!/usr/bin/env bash
# Installs what the tests need, builds everything and runs all tests but the long ones. Arguments go to ctest:
#   ./test.sh -R sampler      tests whose name matches
#   ./test.sh -L long         the long ones
set -euo pipefail
root=$(cd "$(dirname "$0")" && pwd)
"$root/scripts/install_packages.sh" --tests
"$root/scripts/check_includes.py"
if ! "$root/scripts/fetch_models.sh"; then
  echo "The tests labelled 'models' will skip: SmolLM2 and Gemma3 could not be had." >&2
fi
if ! "$root/scripts/fetch_clients.sh"; then
  echo "The test of OpenAI's client will skip: it could not be had." >&2
fi
"$root/scripts/build.sh" all
if [[ $# -eq 0 ]]; then
  set -- -LE long
fi
exec ctest --test-dir "$root/build/release" --output-on-failure -j "$(nproc)" "$@"
