#define FORERUN_ISA neondot
#include "simd/neon.h"

#include "kernels/table.inl"

namespace forerun {
extern const Kernels kernels_neondot;
const Kernels kernels_neondot = neondot::make_table("neondot");
}  // namespace forerun
