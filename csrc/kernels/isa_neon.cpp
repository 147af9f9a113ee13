#define FORERUN_ISA neon
#include "simd/neon.h"

#include "kernels/table.inl"

namespace forerun {
extern const Kernels kernels_neon;
const Kernels kernels_neon = neon::make_table("neon");
}  // namespace forerun
