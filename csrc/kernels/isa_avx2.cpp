#define FORERUN_ISA avx2
#include "simd/avx2.h"

#include "kernels/table.inl"

namespace forerun {
extern const Kernels kernels_avx2;
const Kernels kernels_avx2 = avx2::make_table("avx2");
}  // namespace forerun
