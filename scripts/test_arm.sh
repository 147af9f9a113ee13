#!/usr/bin/env bash
# The C++ tests of a 64-bit Arm build, under qemu's user emulation: with the dot product instructions and without.
# Installs nothing. Needs cmake, a cross compiler and qemu (Debian: g++-aarch64-linux-gnu, qemu-user). Takes about ten minutes,
# most of it for test_decoder. What emulation cannot run is left out: forks of a process with threads.
#
#   scripts/test_arm.sh [TEST ...]    tests by name (test_kernels, test_decoder, ...); all without
#
# Environment: CXX (aarch64-linux-gnu-g++), QEMU (qemu-aarch64), SYSROOT (/usr/aarch64-linux-gnu), JOBS (of the build; 2).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cxx=${CXX:-aarch64-linux-gnu-g++}
qemu=${QEMU:-qemu-aarch64}
sysroot=${SYSROOT:-/usr/aarch64-linux-gnu}
for tool in cmake "$cxx" "$qemu"; do
  command -v "$tool" > /dev/null || { echo "$tool is not here (Debian: apt install cmake g++-aarch64-linux-gnu qemu-user)" >&2; exit 2; }
done

build=build/arm
mkdir -p build
cmake -S . -B "$build" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER="$cxx" \
  -DFORERUN_PYTHON=OFF -DFORERUN_TESTS=ON > "$build.log" 2>&1 || { cat "$build.log"; exit 1; }
cmake --build "$build" -j "${JOBS:-2}" > "$build.log" 2>&1 || { grep -A5 -E "error|undefined" "$build.log" || tail -n 30 "$build.log"; exit 1; }

if (($#)); then tests=("${@/#/$build/}"); else tests=("$build"/test_*); fi
for cpu in max cortex-a53; do
  for test in "${tests[@]}"; do
    [[ -x $test && -f $test ]] || { [[ $# -gt 0 ]] && { echo "no test $test" >&2; exit 2; }; continue; }
    printf '\n== %s on %s (%s s)\n' "$(basename "$test")" "$cpu" "$SECONDS"
    words=()
    [[ $test == */test_threads ]] && words=(no-forks)  # qemu itself breaks when a forked child starts threads
    "$qemu" -cpu "$cpu" -L "$sysroot" "$test" "${words[@]}"
  done
done
