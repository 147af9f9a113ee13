// The table of one instruction set. Include after its simd header, in a file of its own compiled for that set.
#include "simd/math.h"

#include "kernels/attention.inl"
#include "kernels/choice.inl"
#include "kernels/elementwise.inl"
#include "kernels/linear.inl"
#include "kernels/quantise.inl"

namespace forerun {
namespace FORERUN_ISA {

static constexpr Kernels make_table(const char* name) {
  Kernels k{};
  k.name = name;
  k.row_kind = row_kind;
  k.row_bytes = row_bytes;
  k.prepare = prepare;
  k.refine = refine;
  k.linear = linear;
  k.quantise_q4 = quantise_q4;
  k.quantise_q8 = quantise_q8;
  k.rms_norm = rms_norm;
  k.rope = rope;
  k.scale = scale;
  k.accumulate = accumulate;
  k.swiglu = swiglu;
  k.argmax = argmax;
  k.store_key = store_key;
  k.store_value = store_value;
  k.attend_scratch = attend_scratch;
  k.pack_query = pack_query;
  k.clear = clear;
  k.attend = attend;
  k.merge = merge;
  k.finish = finish;
  k.survey = choice::survey;
  k.copy_allowed = choice::copy_allowed;
  k.reaching = choice::reaching;
  k.collect = choice::collect;
  k.kth_of = choice::kth_of;
  k.tally = choice::tally;
  k.exp_sum = choice::exp_sum;
  k.lift = choice::lift;
  return k;
}

}  // namespace FORERUN_ISA
}  // namespace forerun
