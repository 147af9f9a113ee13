// Functions over vf that every instruction set shares. Included after one of the simd headers.
#pragma once

// For loops over arrays that shall be registers: unrolled in time for the compiler to keep them there.
#define FORERUN_UNROLL _Pragma("GCC unroll 24")

namespace forerun {
namespace FORERUN_ISA {

// e^x, about 1 ulp for x in [-87, 88]; 0 below. Cody-Waite reduction and a degree-6 polynomial on [-ln2/2, ln2/2].
static inline vf exp(vf x) {
  const vf clamped = max(min(x, set1(88.0f)), set1(-104.0f));
  const vf n = round_even(mul(clamped, set1(1.44269504088896341f)));
  vf r = fma(n, set1(-0.693359375f), clamped);
  r = fma(n, set1(2.12194440e-4f), r);
  vf p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(mul(p, r), r, add(r, set1(1.0f)));
  return scale2(p, n);
}

// e^x for x <= 0 to 3e-6 of itself, which weights that are rounded do not show. 2^n times a polynomial in base 2.
static inline vf exp_below(vf x) {
  const vf y = mul(max(x, set1(-104.0f)), set1(1.44269504088896341f));
  const vf n = round_even(y), r = sub(y, n);
  vf p = set1(9.58284642547369e-3f);
  p = fma(p, r, set1(5.590643361210823e-2f));
  p = fma(p, r, set1(2.4024099111557007e-1f));
  p = fma(p, r, set1(6.931241750717163e-1f));
  p = fma(p, r, set1(1.0f));
  return scale2(p, n);
}

static inline vf silu(vf x) { return div(x, add(set1(1.0f), exp(sub(zero(), x)))); }

}  // namespace FORERUN_ISA
}  // namespace forerun
