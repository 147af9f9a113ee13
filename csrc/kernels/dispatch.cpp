// Which instruction sets this machine runs.
#include <cstring>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace forerun {

extern const Kernels kernels_portable, kernels_avx2, kernels_avxvnni, kernels_avx512, kernels_avx512vnni, kernels_avx512bf16,
    kernels_neon, kernels_neondot;

// FORERUN_HAS_...: which of these the build has compiled.
namespace {

struct Choice {
  const Kernels* table;
  bool supported;
};

#if defined(__x86_64__)
struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};
Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  if (!__get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d)) return {};
  return r;
}
bool bit(unsigned word, int n) { return (word >> n) & 1u; }

// Register files that the operating system saves (XCR0).
unsigned saved_state(const Registers& leaf1) {
  if (!bit(leaf1.c, 27)) return 0;  // OSXSAVE
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Best first.
int choices(Choice* out) {
  const Registers one = cpuid(1, 0), seven = cpuid(7, 0), seven1 = cpuid(7, 1);
  const unsigned saved = saved_state(one);
  const bool ymm = (saved & 0x6) == 0x6, zmm = (saved & 0xe6) == 0xe6;
  const bool avx2 = ymm && bit(one.c, 12) && bit(one.c, 29) && bit(seven.b, 5);  // FMA, F16C, AVX2
  const bool avx512 = zmm && avx2 && bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) && bit(seven.b, 31);  // F DQ BW VL
  const bool vnni = avx512 && bit(seven.c, 11);
  int n = 0;
#ifdef FORERUN_HAS_AVX512BF16
  out[n++] = {&kernels_avx512bf16, vnni && bit(seven1.a, 5)};
#endif
#ifdef FORERUN_HAS_AVX512VNNI
  out[n++] = {&kernels_avx512vnni, vnni};
#endif
#ifdef FORERUN_HAS_AVX512
  out[n++] = {&kernels_avx512, avx512};
#endif
#ifdef FORERUN_HAS_AVXVNNI
  out[n++] = {&kernels_avxvnni, avx2 && bit(seven1.a, 4)};
#endif
#ifdef FORERUN_HAS_AVX2
  out[n++] = {&kernels_avx2, avx2};
#endif
  out[n++] = {&kernels_portable, true};
  return n;
}
#elif defined(__aarch64__) && defined(FORERUN_HAS_NEON)
bool has_dot_product() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) >> 20) & 1u;  // HWCAP_ASIMDDP
#elif defined(__APPLE__)
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has != 0;
#else
  return false;
#endif
}
int choices(Choice* out) {
  int n = 0;
#ifdef FORERUN_HAS_NEONDOT
  out[n++] = {&kernels_neondot, has_dot_product()};
#endif
#ifdef FORERUN_HAS_NEON
  out[n++] = {&kernels_neon, true};
#endif
  out[n++] = {&kernels_portable, true};
  return n;
}
#else
int choices(Choice* out) {
  out[0] = {&kernels_portable, true};
  return 1;
}
#endif

constexpr int kMostChoices = 8;

}  // namespace

int available_kernels(const Kernels** tables, int room) {
  Choice all[kMostChoices];
  const int n = choices(all);
  int found = 0;
  for (int i = 0; i < n; i++) {
    if (!all[i].supported) continue;
    if (found < room) tables[found] = all[i].table;
    found++;
  }
  return found;
}

const Kernels* find_kernels(const char* name) {
  const Kernels* tables[kMostChoices];
  const int n = available_kernels(tables, kMostChoices);
  if (name[0] == '\0') return tables[0];
  for (int i = 0; i < n; i++)
    if (std::strcmp(tables[i]->name, name) == 0) return tables[i];
  return nullptr;
}

}  // namespace forerun
