#define FORERUN_ISA avxvnni
#include "simd/avx2.h"

#include "kernels/table.inl"

namespace forerun {
extern const Kernels kernels_avxvnni;
const Kernels kernels_avxvnni = avxvnni::make_table("avxvnni");
}  // namespace forerun
