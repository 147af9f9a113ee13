#define FORERUN_ISA avx512vnni
#include "simd/avx512.h"

#include "kernels/table.inl"

namespace forerun {
extern const Kernels kernels_avx512vnni;
const Kernels kernels_avx512vnni = avx512vnni::make_table("avx512vnni");
}  // namespace forerun
