#!/usr/bin/env bash
# The C++ core under sanitizers; nothing of the ordinary test run needs it.
#
#   scripts/sanitize.sh [address]   addresses and undefined behaviour: C++ tests, Python tests of the core, damaged files
#   scripts/sanitize.sh thread      data races: C++ tests
#
# Needs GCC with its sanitizers' libraries, cmake, and for addresses a python3 that has nanobind and what forerun's tests
# need (docs/development.md). Builds in build/sanitize-*, which takes some minutes of a processor for each instruction set
# the first time, and leaves the installed package alone. Stops at the first finding, with exit status 1 or the sanitizer's.
#
# Environment: CXX (g++), PYTHON (python3), JOBS (of the build; 2), CASES (damaged files; 4000), SEED (of the damage; 0).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=${1:-address}
export CXX=${CXX:-g++}
python=$(command -v "${PYTHON:-python3}")
case $mode in
  address) flags=address,undefined,float-cast-overflow extension=ON ;;
  thread) flags=thread extension=OFF ;;
  *) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
build=build/sanitize-$mode
mkdir -p build

step() { printf '\n== %s (%s s)\n' "$1" "$SECONDS"; }

step "build, -fsanitize=$flags"
cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O2 -fno-sanitize-recover=all" -DFORERUN_SANITIZE="$flags" \
  -DFORERUN_TESTS=ON -DFORERUN_PYTHON=$extension -DPython_EXECUTABLE="$python" \
  -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir 2>/dev/null || true)" -Wno-dev > "$build.log" 2>&1 || { cat "$build.log"; exit 1; }
cmake --build "$build" -j "${JOBS:-2}" > "$build.log" 2>&1 || { grep -A5 -E "error|undefined" "$build.log" || tail -n 30 "$build.log"; exit 1; }

# Not detect_stack_use_after_return: GCC (12 at least) aligns that stack less than the vectors of AVX-512 that it puts there.
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
# The thread sanitizer of GCC up to 13 knows no address space as random as that of new kernels.
fixed() { if [[ $mode == thread ]] && setarch "$(uname -m)" -R true 2>/dev/null; then setarch "$(uname -m)" -R "$@"; else "$@"; fi; }

for test in "$build"/test_*; do
  if [[ -x $test && -f $test ]]; then
    step "$(basename "$test")"
    fixed "$test"
  fi
done
[[ $mode == thread ]] && exit

# The package as it is here, with this build's extension.
site=$build/site
rm -rf "$site"
mkdir -p "$site/forerun"
for item in src/forerun/*; do
  [[ $item == *.so ]] || ln -s "$PWD/$item" "$site/forerun/"
done
ln -s "$PWD/$build"/_core*.so "$site/forerun/"
export PYTHONPATH=$PWD/$site PYTHONMALLOC=malloc
# libstdc++ too: the sanitizer must find what throws exceptions before Python has loaded it.
asan=$("$CXX" -print-file-name=libasan.so)
[[ -e $asan ]] || { echo "$CXX has no libasan.so; this needs GCC's" >&2; exit 2; }
checked() { LD_PRELOAD="$asan $("$CXX" -print-file-name=libstdc++.so)" "$python" "$@"; }
loaded=$(checked -c 'import os, forerun._core as core; print(os.path.realpath(core.__file__))')
[[ $loaded == "$(realpath "$build")"/* ]] || { echo "python loads $loaded instead of the build in $build"; exit 1; }

step "Python tests of the core"
checked -m pytest -q -p no:cacheprovider tests/unit/test_core_arguments.py tests/unit/test_core_safety.py \
  tests/unit/test_finite_weights.py tests/unit/test_width_invariance.py \
  tests/unit/test_choice.py tests/unit/test_drafter_suffix.py tests/conformance/test_layer_skip.py

step "damaged headers"
checked scripts/fuzz_headers.py --load --cases "${CASES:-4000}" --seed "${SEED:-0}"

step "done"
