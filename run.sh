#!/usr/bin/env bash
# Installs what is missing, builds, and runs elasticmem with the arguments given.
# `./run.sh serve` alone serves the model in models/.
# Without arguments: tells a fairy tale with the model in models/, inside 75 % of that model's bytes.
set -euo pipefail
root=$(cd "$(dirname "$0")" && pwd)
"$root/scripts/install_packages.sh"
"$root/scripts/build.sh" elasticmem
elasticmem=$root/build/release/tools/elasticmem
if [[ $# -eq 1 && $1 == serve ]]; then
  set -- serve -m "$root/models/tales-q8_0.gguf" --memory 90% --context 512 --clients 4
fi
if [[ $# -gt 0 ]]; then
  exec "$elasticmem" "$@"
fi
exec "$elasticmem" run -m "$root/models/tales-q8_0.gguf" --memory 75% -n 200 --seed 7 \
  -p "Once upon a time there was a king who"
