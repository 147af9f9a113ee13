#define FORERUN_ISA avx512
#include "simd/avx512.h"

#include "kernels/table.inl"

namespace forerun {
extern const Kernels kernels_avx512;
const Kernels kernels_avx512 = avx512::make_table("avx512");
}  // namespace forerun
