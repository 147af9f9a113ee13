// Every instruction set of this machine against the portable kernels, in all but linear layers (test_kernels has those):
// the same bits where integers or single operations decide, else nearly the same numbers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/layout.h"
#include "tests/check.h"
#include "tests/reference.h"

using namespace forerun;

namespace {

using Floats = std::vector<float>;

Checks check;

constexpr float kInfinity = INFINITY;
constexpr float kOdd[] = {0.0f, -0.0f, 1e-42f, -1e-39f, 6e-8f, -3e-5f, 0.5f, 1.5f, -2.5f, 65519.0f, 65520.0f, -1e30f, 3e38f};

// Numbers of many sizes; some of kOdd where they are wanted.
Floats numbers(reference::Generator& random, int n, float spread = 1.0f, bool odd = false) {
  Floats x;
  for (int i = 0; i < n; i++) {
    x.push_back(spread * random.normal() * (random.byte() % 16 == 0 ? 20.0f : 1.0f));
    if (odd && random.byte() % 8 == 0) x.back() = kOdd[random.byte() % (sizeof kOdd / sizeof *kOdd)];
  }
  return x;
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// By the ratio of norms.
bool near(const Floats& a, const Floats& b, double tolerance) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); i++) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    difference += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
    norm += double(b[i]) * b[i];
  }
  return a.size() == b.size() && std::sqrt(difference) <= tolerance * std::sqrt(norm);
}

struct Pair {
  const Kernels &set, &portable;
  // Whether a function of a table gives with this set what `test` wants of it and of the portable one.
  template <class Work, class Test>
  void agree(const std::string& what, Work&& work, Test&& test) const {
    check(test(work(set), work(portable)), std::string(set.name) + ": " + what);
  }
  template <class Work>
  void same_bits(const std::string& what, Work&& work) const {
    agree(what, work, [](const auto& a, const auto& b) { return same(a, b); });
  }
  template <class Work>
  void same_numbers(const std::string& what, Work&& work, double tolerance = 1e-6) const {
    agree(what, work, [&](const Floats& a, const Floats& b) { return near(a, b, tolerance); });
  }
};

void test_elementwise(const Pair& pair, reference::Generator& random, int n) {
  const std::string of = " of " + std::to_string(n);
  const int padded = (n + 15) / 16 * 16;
  const Floats x = numbers(random, padded, 3.0f, true), mild = numbers(random, padded), y = numbers(random, padded);
  pair.same_numbers("RMSNorm" + of, [&](const Kernels& k) {
    Floats out(n);
    k.rms_norm(mild.data(), y.data(), n, 1e-5f, out.data());
    return out;
  });
  pair.same_numbers("rotation" + of, [&](const Kernels& k) {
    Floats head(mild.begin(), mild.begin() + n / 2 * 2);
    k.rope(head.data(), x.data(), y.data(), n / 2);
    return head;
  });
  pair.same_bits("scaling" + of, [&](const Kernels& k) {
    Floats out = x;
    k.scale(out.data(), 0.3f, n);
    return out;
  });
  pair.same_bits("sum" + of, [&](const Kernels& k) {
    Floats out = x;
    k.accumulate(out.data(), y.data(), n);
    return out;
  });
  pair.same_numbers("SwiGLU" + of, [&](const Kernels& k) {
    Floats gate = mild, up = y;
    for (int i = 0; i < padded; i += 5) gate[i] = float(i % 211) - 105.0f;  // exponents of every size
    k.swiglu(gate.data(), up.data(), padded);
    return gate;
  });
  Floats ties = x;
  for (float& v : ties) v = std::round(v);
  if (n > 3) ties[n / 2] = NAN;
  pair.same_bits("argmax" + of, [&](const Kernels& k) { return std::vector<int>{k.argmax(x.data(), n), k.argmax(ties.data(), n)}; });
}

// What all sets keep of a row prepared for 8-bit products.
void test_prepare(const Pair& pair, reference::Generator& random, int inputs) {
  for (const float spread : {1.0f, 1e-20f, 1e20f, 0.0f}) {
    const Floats x = numbers(random, inputs, spread);
    pair.same_bits("8 bits of " + std::to_string(inputs) + " inputs of size " + std::to_string(spread), [&](const Kernels& k) {
      std::vector<RowPair> row(k.row_bytes(RowKind::q8, inputs) / sizeof(RowPair) + 1);
      k.prepare(RowKind::q8, x.data(), inputs, 0, inputs, row.data());
      std::vector<float> kept;
      for (int i = 0; i < pairs_of(inputs); i++)
        for (int g = 0; g < 2; g++) {
          const RowGroup& group = row[i].group[g];
          kept.insert(kept.end(), group.q, group.q + kGroup);
          kept.insert(kept.end(), {group.scale, float(group.start4)});
        }
      return kept;
    });
  }
}

// A cache of one head in memory of its own.
struct Store {
  Store(KvType type, int head_dim, int slots) {
    const size_t keys = size_t(kPage) * padded(head_dim), values = keys, page = keys + values + 2 * kPage;  // as for floats
    memory.resize(size_t(slots + kPage - 1) / kPage * page);
    float *first = memory.data(), *scales = first + keys + values;
    head = {type, head_dim, padded(head_dim), first, first + keys, scales, scales + kPage, page * sizeof(float)};
  }
  static int padded(int n) { return (n + 15) / 16 * 16; }
  Floats memory;
  KvHead head;
};

void fill(const Kernels& k, Store& store, const Floats& vectors, int slots) {
  const int stride = store.head.value_stride;
  Floats scratch(stride);
  for (int s = 0; s < slots; s++) {
    k.store_key(store.head, s, vectors.data() + size_t(2 * s) * stride, scratch.data());
    k.store_value(store.head, s, vectors.data() + size_t(2 * s + 1) * stride);
  }
}

void test_attention(const Pair& pair, reference::Generator& random, KvType type, int dim) {
  constexpr int kSlots = 320, kPrefix = 233;  // tails lie in two pages
  const std::string what = ", cache type " + std::to_string(int(type)) + ", heads of " + std::to_string(dim);
  const int stride = Store::padded(dim);
  Floats vectors = numbers(random, 2 * kSlots * stride), odd = numbers(random, 2 * kSlots * stride, 1.0f, true);
  for (Floats* v : {&vectors, &odd})
    for (size_t i = 0; i < v->size(); i++)
      if (int(i % stride) >= dim) (*v)[i] = 0.0f;
  pair.same_bits("keys and values" + what, [&](const Kernels& k) {
    Store store(type, dim, kSlots);
    const bool plain = type == KvType::q8 || type == KvType::bf16;  // a processor rounds odd numbers to bf16 its own way
    fill(k, store, plain ? vectors : odd, kSlots);
    return store.memory;
  });
  Floats q = numbers(random, kMaxQueries * stride, 0.05f);
  for (size_t i = 0; i < q.size(); i++)
    if (int(i % stride) >= dim) q[i] = 0.0f;
  std::vector<int32_t> tail;
  for (int i = 0; i < 20; i++) tail.push_back(kPrefix + (i * 7) % 40);
  pair.same_numbers("attention" + what, [&](const Kernels& k) {
    Store store(type, dim, kSlots);
    fill(k, store, vectors, kSlots);
    constexpr int kTailBlocks = 4;
    std::vector<float> scratch(k.attend_scratch(kTailBlocks, stride));
    const int sum = kSumHeader + stride;
    Floats all;
    for (int n : {1, 2, 3, 7, kMaxQueries}) {
      std::vector<Query> queries;
      for (int r = 0; r < n; r++) queries.push_back({11 * r, kPrefix, tail.data(), kPrefix + 1 + r});
      Floats sums(size_t(n) * sum), more(size_t(n) * sum);
      k.clear(sums.data(), n, stride);
      std::vector<float> packed(size_t(dim + 1) * kMaxQueries);
      for (int r = 0; r < n; r++) k.pack_query(store.head, q.data() + size_t(r) * stride, r, packed.data());
      for (int chunk = 0; chunk * kChunk < kPrefix + n; chunk++) {
        k.clear(more.data(), n, stride);
        k.attend(store.head, packed.data(), queries.data(), n, chunk, scratch.data(), kTailBlocks, more.data());
        k.merge(sums.data(), more.data(), n, stride);
      }
      for (int r = 0; r < n; r++) {
        Floats out(dim);
        k.finish(sums.data() + size_t(r) * sum, dim, out.data());
        all.insert(all.end(), out.begin(), out.end());
      }
    }
    return all;
  }, type == KvType::bf16 ? 2e-2 : type == KvType::q8 ? 3e-4 : 1e-5);  // bf16 rounds on some sets, q8 to 16 bits on all
}

// Attention over the numbers that were stored, in double precision.
void test_meaning(const Kernels& k, reference::Generator& random, KvType type, int dim) {
  constexpr int kLength = 300;
  const int stride = Store::padded(dim);
  Floats vectors(size_t(2) * kLength * stride), q(stride), scratch(k.attend_scratch(1, stride)), packed(size_t(dim + 1) * kMaxQueries);
  for (int i = 0; i < 2 * kLength; i++)
    for (int d = 0; d < dim; d++) vectors[size_t(i) * stride + d] = random.normal();
  for (int d = 0; d < dim; d++) q[d] = 2.0f * random.normal() / std::sqrt(float(dim));
  Store store(type, dim, kLength);
  fill(k, store, vectors, kLength);
  const Query query{5, kLength, nullptr, kLength};
  k.pack_query(store.head, q.data(), 0, packed.data());
  Floats sum(kSumHeader + stride), out(dim), expected(dim);
  k.clear(sum.data(), 1, stride);
  for (int chunk = 0; chunk * kChunk < kLength; chunk++)
    k.attend(store.head, packed.data(), &query, 1, chunk, scratch.data(), 1, sum.data());
  k.finish(sum.data(), dim, out.data());
  std::vector<double> mean(dim);
  double weights = 0;
  for (int p = query.first; p < kLength; p++) {
    double score = 0;
    for (int d = 0; d < dim; d++) score += double(q[d]) * vectors[size_t(2 * p) * stride + d];
    weights += std::exp(score);
    for (int d = 0; d < dim; d++) mean[d] += std::exp(score) * vectors[size_t(2 * p + 1) * stride + d];
  }
  for (int d = 0; d < dim; d++) expected[d] = float(mean[d] / weights);
  const double tolerance[] = {1e-5, 2e-3, 3e-2, 3e-2};  // f32, f16, q8, bf16
  check(near(out, expected, tolerance[int(type)]),
        std::string(k.name) + ": attention means what it should, cache type " + std::to_string(int(type)) + ", heads of " + std::to_string(dim));
}

void test_choice(const Pair& pair, reference::Generator& random, int n, bool ties) {
  const std::string of = " of " + std::to_string(n);
  Floats x = numbers(random, n, 3.0f);
  for (float& v : x) v = ties ? std::round(v) : v;
  for (int i = 5; i < n; i += 7) x[i] = -kInfinity;
  Floats damaged = x;
  damaged[n / 2] = NAN;
  const int blocks = (n + kBlock - 1) / kBlock;
  const float top = *std::max_element(x.begin(), x.end()), least = top - 9.0f;
  const auto tops_of = [&](const Kernels& k, const Floats& row) {
    Floats tops(blocks + 1);
    tops[blocks] = k.survey(row.data(), n, tops.data());
    return tops;
  };
  const Floats tops = tops_of(pair.portable, x);
  check(tops[blocks] == top, "portable: highest value" + of);
  pair.same_bits("highest values" + of, [&](const Kernels& k) { return tops_of(k, x); });
  check(std::isnan(tops_of(pair.set, damaged)[blocks]), std::string(pair.set.name) + ": NaN is seen" + of);
  std::vector<uint32_t> allowed((n + 31) / 32);
  for (uint32_t& word : allowed) word = uint32_t(random.byte()) * 0x01010101u ^ uint32_t(random.byte()) << 11;
  pair.same_bits("mask" + of, [&](const Kernels& k) {
    Floats y(n);
    k.copy_allowed(x.data(), n, allowed.data(), y.data());
    return y;
  });
  pair.same_bits("what is high enough" + of, [&](const Kernels& k) {
    std::vector<int32_t> ids(n);
    ids.push_back(k.collect(x.data(), n, tops.data(), least, ids.data()));
    for (int b = 0; b < blocks; b++) ids.push_back(int32_t(k.reaching(x.data(), n, b, least) % 1000003u));
    return ids;
  });
  pair.same_bits("k-th highest" + of, [&](const Kernels& k) {
    std::vector<int32_t> keys(n);
    Floats found;
    for (int kth : {1, (n + 1) / 2, n}) found.push_back(k.kth_of(x.data(), n, kth, keys.data()));
    return found;
  });
  pair.same_bits("sum of exponentials" + of, [&](const Kernels& k) {
    std::vector<double> weights(n);
    weights.push_back(k.exp_sum(x.data(), n, tops.data(), least, 0.7, top / 0.7, weights.data()));
    return weights;
  });
  const auto tally = [&](const Kernels& k) {
    const Masses m = k.tally(x.data(), n, tops.data(), least, top - 2.0f, top, 1.4f);
    return std::vector<double>{m.all, m.from};
  };
  pair.agree("tally" + of, tally, [](const auto& a, const auto& b) {
    const double most = 2 * kTallyError * b[0];
    return std::fabs(a[0] - b[0]) <= most && std::fabs(a[1] - b[1]) <= most;
  });
  pair.same_bits("noise of groups" + of, [&](const Kernels& k) {
    std::vector<uint64_t> noise((blocks + 15) / 16 * 16);
    Floats bounds(blocks);
    k.lift(0x123456789abcdefull, 77, tops.data(), blocks, least, top, 1.4f, noise.data(), bounds.data());
    noise.resize(blocks);
    for (const float b : bounds) {
      noise.push_back(0);
      std::memcpy(&noise.back(), &b, sizeof b);
    }
    return noise;
  });
}

}  // namespace

int main() {
  const Kernels* tables[16];
  const int sets = available_kernels(tables, 16);
  for (int s = 0; s < sets; s++)
    for (const KvType type : {KvType::f32, KvType::f16, KvType::q8, KvType::bf16})
      for (const int dim : {7, 24, 64, 128}) {
        reference::Generator random(6);
        test_meaning(*tables[s], random, type, dim);
      }
  for (int s = 0; s + 1 < sets; s++) {
    const Pair pair{*tables[s], *tables[sets - 1]};
    reference::Generator random(5);
    for (const int n : {1, 15, 16, 48, 63, 64, 130, 577}) {
      test_elementwise(pair, random, n);
      test_prepare(pair, random, n);
    }
    for (const KvType type : {KvType::f32, KvType::f16, KvType::q8, KvType::bf16})
      for (const int dim : {8, 24, 64, 128}) test_attention(pair, random, type, dim);
    for (const int n : {1, 17, 63, 64, 65, 300, 5000})
      for (const bool ties : {false, true}) test_choice(pair, random, n, ties);
  }
  return check.finish();
}
