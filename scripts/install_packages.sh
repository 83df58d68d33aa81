#!/usr/bin/env bash
# Installs the Debian packages that building (and with --tests, testing) needs. Idempotent and quick when nothing is missing.
# Works as root or through sudo; where neither is possible it prints what is missing and fails.
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config ccache libabsl-dev libboost1.81-dev libcli11-dev libfmt-dev libhwy-dev libmimalloc-dev
          libpcre2-dev libspdlog-dev libssl-dev libtbb-dev libtomlplusplus-dev liburing-dev libxxhash-dev nlohmann-json3-dev
          prometheus-cpp-dev)
if [[ "${1:-}" == --tests ]]; then
  packages+=(libgtest-dev libgmock-dev python3 python3-pip)
fi

missing=()
installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null |
  awk '$2 == "installed" {print $1}' || true)
for package in "${packages[@]}"; do
  grep -qx -- "$package" <<<"$installed" || missing+=("$package")
done
# A compiler or a tool that came another way will do.
for tool in g++:g++ cmake:cmake ninja:ninja-build pkg-config:pkg-config ccache:ccache python3:python3 pip3:python3-pip; do
  if command -v "${tool%%:*}" >/dev/null; then
    kept=()
    for package in "${missing[@]}"; do [[ "$package" == "${tool##*:}" ]] || kept+=("$package"); done
    missing=("${kept[@]}")
  fi
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo)
  else
    echo "These packages are missing and only root may install them:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    exit 1
  fi
fi
echo "Installing ${missing[*]}" >&2
"${as_root[@]}" apt-get update -qq >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Dpkg::Use-Pty=0 \
  --no-install-recommends "${missing[@]}" >/dev/null
