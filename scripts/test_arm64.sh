#!/usr/bin/env bash
# Builds for 64-bit ARM and runs the tests of the kernels under qemu: scripts/test_arm64.sh [GoogleTest options]
# As root or through sudo on Debian 12: it installs a cross compiler and qemu, and unpacks ARM libraries into build/.
set -euo pipefail
cd "$(dirname "$0")/.."

as_root=()
[[ $(id -u) -eq 0 ]] || as_root=(sudo)
if ! command -v aarch64-linux-gnu-g++-12 qemu-aarch64 >/dev/null; then
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq g++-12-aarch64-linux-gnu qemu-user
fi
scripts/install_packages.sh --tests

# Most development packages cannot be installed for two architectures at once.
root=build/arm64-root
if [[ ! -d $root ]]; then
  dpkg --print-foreign-architectures | grep -qx arm64 || "${as_root[@]}" dpkg --add-architecture arm64
  "${as_root[@]}" apt-get update -qq
  debs=$(mktemp -d)
  trap 'rm -rf "$debs"' EXIT
  packages=(libabsl-dev libabsl20220623 libfmt-dev libfmt9 libgmock-dev libgtest-dev libhwy-dev libhwy1 libmimalloc-dev
            libmimalloc2.0 libpcre2-8-0 libpcre2-dev libtbb-dev libtbb12 libtbbbind-2-5 libtbbmalloc2 libtomlplusplus-dev libtomlplusplus3 liburing-dev
            liburing2 libxxhash-dev libxxhash0)
  (cd "$debs" && apt-get download -q "${packages[@]/%/:arm64}" libcli11-dev nlohmann-json3-dev googletest)
  mkdir -p build/arm64-root.part
  for deb in "$debs"/*.deb; do dpkg -x "$deb" build/arm64-root.part; done
  mv build/arm64-root.part $root
fi

cmake --preset arm64 >/dev/null
tests=(tensor/dot_test tensor/quantize_test dense_ops/matmul_test dense_ops/attention_test dense_ops/transformer_ops_test
       ffn_ops/sparse_ffn_test ffn_ops/activation_test device/device_test)
cmake --build build/arm64 --target "${tests[@]##*/}"
for test in "${tests[@]}"; do
  echo "== $test"
  qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=$root/usr/lib/aarch64-linux-gnu \
    "build/arm64/tests/$test" --gtest_brief=1 "$@"
done
