#define FORERUN_ISA avx512bf16
#include "simd/avx512.h"

#include "kernels/table.inl"

namespace forerun {
extern const Kernels kernels_avx512bf16;
const Kernels kernels_avx512bf16 = avx512bf16::make_table("avx512bf16");
}  // namespace forerun
