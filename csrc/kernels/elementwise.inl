// Per-row operations. Included once per instruction set, after its simd header and math.h.
namespace forerun {
namespace FORERUN_ISA {

// RMSNorm (Zhang and Sennrich, arXiv 1910.07467): y = x / sqrt(mean(x^2) + eps) * weight. x and y may be the same.
static void rms_norm(const float* x, const float* weight, int n, float eps, float* y) {
  vf squares = zero();
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const vf v = load(x + i);
    squares = fma(v, v, squares);
  }
  float sum = hsum(squares);
  for (; i < n; i++) sum += x[i] * x[i];
  const float scale = 1.0f / __builtin_sqrtf(sum / float(n) + eps);
  for (i = 0; i + kLanes <= n; i += kLanes) store(y + i, mul(mul(load(x + i), set1(scale)), load(weight + i)));
  for (; i < n; i++) y[i] = x[i] * scale * weight[i];
}

// Rotary position embedding (Su et al., arXiv 2104.09864) on pairs (i, i + half), in place.
static void rope(float* head, const float* cos, const float* sin, int half) {
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const vf a = load(head + i), b = load(head + half + i), c = load(cos + i), s = load(sin + i);
    store(head + i, sub(mul(a, c), mul(b, s)));
    store(head + half + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; i++) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cos[i] - b * sin[i];
    head[half + i] = b * cos[i] + a * sin[i];
  }
}

static void scale(float* x, float factor, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, mul(load(x + i), set1(factor)));
  for (; i < n; i++) x[i] *= factor;
}

static void accumulate(float* x, const float* y, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, add(load(x + i), load(y + i)));
  for (; i < n; i++) x[i] += y[i];
}

// SwiGLU (Shazeer, arXiv 2002.05202): gate = silu(gate) * up. Both arrays are padded to whole vectors.
static void swiglu(float* gate, const float* up, int n) {
  for (int i = 0; i < n; i += kLanes) store(gate + i, mul(silu(load(gate + i)), load(up + i)));
}

// The lowest index of the largest value; NaN is never larger.
static int argmax(const float* x, int n) {
  vf best = set1(-__builtin_inff());
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) best = max(load(x + i), best);
  float top = hmax(best);
  for (; i < n; i++) top = x[i] > top ? x[i] : top;
  for (i = 0; i < n; i++)
    if (x[i] == top) return i;
  return 0;
}

}  // namespace FORERUN_ISA
}  // namespace forerun
