#!/usr/bin/env bash
# Brings OpenAI's Python client, with which tests talk to the daemon, into .cache/python. Says nothing where it is already there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=3.57.0
folder=.cache/python
[[ -f $folder/.version && $(cat "$folder/.version") == "$version" ]] && exit 0
rm -rf "$folder"
echo "Fetching OpenAI's Python client $version" >&2
python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$folder" "openai==$version" >&2
echo "$version" >"$folder/.version"
