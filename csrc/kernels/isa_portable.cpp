#define FORERUN_ISA portable
#include "simd/portable.h"

#include "kernels/table.inl"

namespace forerun {
extern const Kernels kernels_portable;
const Kernels kernels_portable = portable::make_table("portable");
}  // namespace forerun
