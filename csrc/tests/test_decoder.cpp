// The whole decoder on tiny random models: chains in any chunks, trees and several caches give the bits of plain decoding,
// at any number of threads, from several threads at once, on every instruction set of this machine.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "model/decoder.h"
#include "tests/check.h"
#include "tests/reference.h"

using namespace forerun;

namespace {

using Row = std::vector<float>;  // logits of one row
using Tokens = std::vector<int32_t>;

Checks check;

struct Recipe {
  const char* name;
  Format format;
  int heads, kv_heads, head_dim, window;
  bool tied, biases, head_norms;
};

constexpr int kLayers = 2, kHidden = 48, kInner = 80, kVocab = 70, kCapacity = 1400;
constexpr Recipe kRecipes[] = {
    {"f32", Format::f32, 4, 2, 16, 0, true, false, false},
    {"bf16", Format::bf16, 6, 2, 24, 0, false, true, false},
    {"q8", Format::q8, 3, 1, 32, 37, true, false, true},
    {"q4", Format::q4, 14, 1, 8, 0, false, false, false},
    {"f16", Format::f16, 2, 2, 64, 150, true, true, true},
};

PackedLinear linear(const std::shared_ptr<Arena>& arena, reference::Generator& random, Format format, int outputs, int inputs, bool bias) {
  std::vector<float> values(static_cast<size_t>(outputs) * inputs), offsets(static_cast<size_t>(outputs));
  for (float& x : values) x = 1.5f * random.normal() / std::sqrt(static_cast<float>(inputs));
  for (float& x : offsets) x = 0.1f * random.normal();
  std::vector<uint8_t> raw(values.size() * 4 + 1);  // at an odd address, as a file may have it
  std::memcpy(raw.data() + 1, values.data(), values.size() * 4);
  return pack(arena, {SourceKind::F32, raw.data() + 1, raw.size() - 1}, format, outputs, inputs, nullptr, bias ? offsets.data() : nullptr);
}

std::unique_ptr<Decoder> make_decoder(const Recipe& r, int threads, const Kernels* kernels) {
  reference::Generator random(7);
  const auto arena = std::make_shared<Arena>();
  const auto matrix = [&](int outputs, int inputs, bool bias = false) { return linear(arena, random, r.format, outputs, inputs, bias); };
  const auto norm = [&](int n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& x : values) x = 1.0f + 0.1f * random.normal();
    return values;
  };
  DecoderShape shape;
  shape.layers = kLayers;
  shape.hidden = kHidden;
  shape.intermediate = kInner;
  shape.heads = r.heads;
  shape.kv_heads = r.kv_heads;
  shape.head_dim = r.head_dim;
  shape.vocab = kVocab;
  shape.norm_eps = 1e-5f;
  shape.window = r.window;
  for (int i = 0; i < r.head_dim / 2; i++) shape.inv_freq.push_back(std::pow(10000.0f, -2.0f * float(i) / float(r.head_dim)));
  DecoderWeights weights;
  weights.embed = matrix(kVocab, kHidden);
  if (!r.tied) weights.head = matrix(kVocab, kHidden);
  weights.norm = norm(kHidden);
  for (int l = 0; l < kLayers; l++) {
    LayerWeights layer;
    layer.q = matrix(r.heads * r.head_dim, kHidden, r.biases);
    layer.k = matrix(r.kv_heads * r.head_dim, kHidden, r.biases);
    layer.v = matrix(r.kv_heads * r.head_dim, kHidden, r.biases);
    layer.o = matrix(kHidden, r.heads * r.head_dim);
    layer.gate = matrix(kInner, kHidden);
    layer.up = matrix(kInner, kHidden);
    layer.down = matrix(kHidden, kInner);
    layer.input_norm = norm(kHidden);
    layer.post_norm = norm(kHidden);
    if (r.head_norms) {
      layer.q_norm = norm(r.head_dim);
      layer.k_norm = norm(r.head_dim);
    }
    weights.layers.push_back(std::move(layer));
  }
  return std::make_unique<Decoder>(std::move(shape), std::move(weights), std::make_shared<Team>(threads), kernels);
}

Cache make_cache(const Decoder& d, KvType kv, int capacity = kCapacity) {
  return Cache(d.shape().layers, d.shape().kv_heads, d.shape().head_dim, kv, capacity);
}

std::vector<Row> forward(Decoder& d, Batch batch, bool every_row = true) {
  for (int i = 0; every_row && i < batch.rows(); i++) batch.logits.push_back(i);
  const size_t stride = static_cast<size_t>(d.logits_stride()), wanted = batch.logits.size();
  std::vector<float> logits(wanted * stride), features(batch.tokens.size() * batch.taps.size() * kHidden);
  d.forward(std::move(batch), logits.data(), features.data());
  std::vector<Row> rows;
  for (size_t i = 0; i < wanted; i++) rows.emplace_back(logits.begin() + i * stride, logits.begin() + i * stride + kVocab);
  return rows;
}

Tokens first(int n) {
  Tokens path;
  for (int i = 0; i < n; i++) path.push_back(i);
  return path;
}

Batch chain(const Tokens& tokens, Cache& cache) {
  Batch batch;
  batch.tokens = tokens;
  for (size_t i = 0; i < tokens.size(); i++) batch.parents.push_back(static_cast<int32_t>(i) - 1);
  batch.owners.assign(tokens.size(), 0);
  batch.caches = {&cache};
  return batch;
}

std::vector<Row> feed(Decoder& d, Cache& cache, const Tokens& tokens) {
  if (tokens.empty()) return {};
  std::vector<Row> rows = forward(d, chain(tokens, cache));
  cache.commit(first(static_cast<int>(tokens.size())));
  return rows;
}

bool same(const std::vector<Row>& a, const std::vector<Row>& b) {
  bool equal = a.size() == b.size();
  for (size_t i = 0; equal && i < a.size(); i++) equal = std::memcmp(a[i].data(), b[i].data(), kVocab * sizeof(float)) == 0;
  return equal;
}

std::vector<Row> last(int n, const std::vector<Row>& rows) { return {rows.end() - n, rows.end()}; }

struct Random {
  std::mt19937 engine;
  explicit Random(unsigned seed) : engine(seed) {}
  int below(int n) { return static_cast<int>(engine() % static_cast<unsigned>(n)); }
  Tokens tokens(int n) {
    Tokens t;
    for (int i = 0; i < n; i++) t.push_back(below(kVocab));
    return t;
  }
  Tokens parents(int n) {  // any tree, or several
    Tokens p;
    for (int i = 0; i < n; i++) p.push_back(i == 0 ? -1 : below(4) == 0 ? below(i + 1) - 1 : i - 1);
    return p;
  }
};

Tokens path_to(const Tokens& parents, int node) {
  Tokens path;
  for (; node >= 0; node = parents[static_cast<size_t>(node)]) path.push_back(node);
  std::reverse(path.begin(), path.end());
  return path;
}

Tokens at(const Tokens& tokens, const Tokens& path) {
  Tokens found;
  for (const int32_t i : path) found.push_back(tokens[static_cast<size_t>(i)]);
  return found;
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The oracle: one token at a time, remembered.
class Plain {
 public:
  Plain(Decoder& d, KvType kv) : d_(d), kv_(kv) {}
  std::vector<Row> operator()(const Tokens& text) {
    Cache cache = make_cache(d_, kv_);
    std::vector<Row> rows;
    Tokens before;
    for (const int32_t token : text) {
      before.push_back(token);
      std::vector<Row> row = forward(d_, chain({token}, cache));
      cache.commit({0});
      rows.push_back(std::move(row[0]));
    }
    return rows;
  }

 private:
  Decoder& d_;
  KvType kv_;
};

void test_chunks(Decoder& d, KvType kv, Random& random, const Tokens& text, const std::vector<Row>& plain, const std::string& what) {
  for (int repeat = 0; repeat < 2; repeat++) {
    Cache cache = make_cache(d, kv);
    std::vector<Row> rows;
    for (size_t done = 0; done < text.size();) {
      const size_t n = std::min(text.size() - done, size_t(1 + random.below(repeat ? 300 : 20)));
      for (Row& row : feed(d, cache, Tokens(text.begin() + done, text.begin() + done + n))) rows.push_back(std::move(row));
      done += n;
    }
    check(same(rows, plain), what + ": chunks");
  }
}

// A random tree behind a prefix of the text; then a path of it is kept and decoding goes on.
void test_tree(Decoder& d, KvType kv, Random& random, const Tokens& text, int before, int size, const std::string& what) {
  Cache cache = make_cache(d, kv);
  const Tokens prefix(text.begin(), text.begin() + before);
  feed(d, cache, prefix);
  Batch batch;
  batch.tokens = random.tokens(size);
  batch.parents = random.parents(size);
  batch.owners.assign(static_cast<size_t>(size), 0);
  batch.caches = {&cache};
  batch.taps = {0, kLayers};
  const std::vector<Row> staged = forward(d, batch);
  Plain plain(d, kv);
  Tokens kept;
  for (int k = 0; k < 3; k++) {
    const int node = random.below(size);
    const Tokens path = path_to(batch.parents, node);
    const std::vector<Row> expected = plain(joined(prefix, at(batch.tokens, path)));
    check(same({staged[static_cast<size_t>(node)]}, {expected.back()}), what + ": node " + std::to_string(node) + " of a tree of " + std::to_string(size));
    kept = path;
  }
  cache.commit(kept);
  const Tokens after = random.tokens(3);
  const std::vector<Row> expected = last(3, plain(joined(joined(prefix, at(batch.tokens, kept)), after)));
  check(same(feed(d, cache, after), expected), what + ": after a tree's path");
  cache.truncate(before);
  check(same(feed(d, cache, after), last(3, plain(joined(prefix, after)))), what + ": after truncating");
}

// Trees of several caches at once, each as alone.
void test_caches(Decoder& d, KvType kv, Random& random, const Tokens& text, const std::string& what) {
  const int lengths[] = {0, 130, 17, 3}, sizes[] = {5, 11, 1, 30};
  Batch all;
  std::vector<std::unique_ptr<Cache>> caches;
  std::vector<Row> alone;
  for (int c = 0; c < 4; c++) {
    Batch one;
    one.tokens = random.tokens(sizes[c]);
    one.parents = random.parents(sizes[c]);
    one.owners.assign(static_cast<size_t>(sizes[c]), 0);
    for (int twice = 0; twice < 2; twice++) {
      caches.push_back(std::make_unique<Cache>(d.shape().layers, d.shape().kv_heads, d.shape().head_dim, kv, kCapacity));
      feed(d, *caches.back(), Tokens(text.begin(), text.begin() + lengths[c]));
    }
    one.caches = {caches.back().get()};
    for (Row& row : forward(d, one)) alone.push_back(std::move(row));
    const int start = all.rows();
    for (int i = 0; i < sizes[c]; i++) {
      all.tokens.push_back(one.tokens[static_cast<size_t>(i)]);
      all.parents.push_back(one.parents[static_cast<size_t>(i)] < 0 ? -1 : one.parents[static_cast<size_t>(i)] + start);
      all.owners.push_back(c);
    }
    all.caches.push_back(caches[caches.size() - 2].get());
  }
  check(same(forward(d, all), alone), what + ": several caches at once");
}

void test_mistakes(Decoder& d, KvType kv) {
  Cache cache = make_cache(d, kv, 10), other(kLayers + 1, d.shape().kv_heads, d.shape().head_dim, kv, 10);
  forward(d, chain({1, 2, 3}, cache));
  const auto refused = [&](const std::string& why, const auto& change) {
    Batch batch = chain({4, 5}, cache);
    change(batch);
    check.refuses<std::invalid_argument>(why, [&] { forward(d, batch, false); });
  };
  refused("vocabulary", [](Batch& b) { b.tokens[1] = kVocab; });
  refused("vocabulary", [](Batch& b) { b.tokens[0] = -1; });
  refused("parent", [](Batch& b) { b.parents[0] = 0; });
  refused("parent", [](Batch& b) { b.parents[1] = -2; });
  refused("lengths", [](Batch& b) { b.parents.pop_back(); });
  refused("no rows", [](Batch& b) { b = Batch{}; });
  refused("no cache", [](Batch& b) { b.owners[1] = 1; });
  refused("twice", [](Batch& b) { b.caches.push_back(b.caches[0]); });
  refused("another model", [&](Batch& b) { b.caches[0] = &other; });
  refused("not there", [](Batch& b) { b.logits = {2}; });
  refused("hidden state", [](Batch& b) { b.taps = {kLayers + 1}; });
  refused("capacity", [](Batch& b) {
    b.tokens.assign(11, 0);
    b.owners.assign(11, 0);
    b.parents = first(11);
    for (int32_t& p : b.parents) p--;
  });
  refused("room", [](Batch& b) {
    b.tokens.assign(300, 0);
    b.owners.assign(300, 0);
    b.parents.assign(300, -1);
  });
  {
    const Cache::Use use(cache);
    check.refuses<std::runtime_error>("another thread", [&] { forward(d, chain({4}, cache)); });
    check.refuses<std::runtime_error>("another thread", [&] { cache.truncate(0); });
  }
  check.refuses<std::invalid_argument>("path", [&] { cache.commit({1}); });
  check.refuses<std::invalid_argument>("path", [&] { cache.commit({0, 1, 2, 2}); });
  cache.commit({0, 1, 2});  // what was refused has changed nothing
  check(cache.length() == 3, "the stage before is still there");
  check.refuses<std::invalid_argument>("holds 3", [&] { cache.truncate(4); });
}

// Callers in several threads, some of them of a decoder that shares weights and team.
void test_callers(Decoder& d, KvType kv, const Tokens& text, const std::vector<Row>& plain, const std::string& what) {
  Decoder half(d, 1);
  const Tokens beginning(text.begin(), text.begin() + 40);
  const std::vector<Row> expected(plain.begin(), plain.begin() + 40), expected_half = Plain(half, kv)(beginning);
  bool right[4] = {};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; c++)
    callers.emplace_back([&, c] {
      Decoder& mine = c % 2 ? half : d;
      Cache cache = make_cache(mine, kv);
      bool equal = true;
      for (int k = 0; k < 3; k++) {
        std::vector<Row> rows;
        cache.truncate(0);
        for (int done = 0; done < 40; done += 8)
          for (Row& row : feed(mine, cache, Tokens(beginning.begin() + done, beginning.begin() + done + 8))) rows.push_back(std::move(row));
        equal = equal && same(rows, c % 2 ? expected_half : expected) && mine.profile().linear >= 0.0;
      }
      right[c] = equal;
    });
  for (std::thread& caller : callers) caller.join();
  for (const bool r : right) check(r, what + ": callers in several threads");
}

void test_all(const Recipe& recipe, const Kernels* kernels, KvType kv, int threads, const std::vector<Row>& plain, const Tokens& text) {
  const auto d = make_decoder(recipe, threads, kernels);
  const std::string what = std::string(kernels->name) + ", " + recipe.name + ", kv " + std::to_string(static_cast<int>(kv)) + ", " +
                           std::to_string(threads) + " threads";
  Random random(static_cast<unsigned>(threads));
  test_chunks(*d, kv, random, text, plain, what);
  for (const int before : {0, 126, 5 + random.below(100)}) test_tree(*d, kv, random, text, before, 2 + random.below(40), what);
  test_caches(*d, kv, random, text, what);
  test_callers(*d, kv, text, plain, what);
  test_mistakes(*d, kv);
}

// Contexts of several runs of several chunks.
void test_long(const Recipe& recipe, const Kernels* kernels, KvType kv, const Tokens& text) {
  const std::vector<Row> plain = Plain(*make_decoder(recipe, 1, kernels), kv)(text);
  for (const int threads : {1, 3}) {
    const auto d = make_decoder(recipe, threads, kernels);
    const std::string what = std::string(kernels->name) + ", long, kv " + std::to_string(static_cast<int>(kv)) + ", " +
                             std::to_string(threads) + " threads";
    Random random(static_cast<unsigned>(threads));
    test_chunks(*d, kv, random, text, plain, what);
    test_tree(*d, kv, random, text, 1010 + random.below(30), 2 + random.below(30), what);
  }
}

}  // namespace

int main() {
  const Kernels* tables[16];
  const int sets = available_kernels(tables, 16);
  const Tokens text = Random(3).tokens(160);
  for (int s = 0; s < sets; s++)
    for (const Recipe& recipe : kRecipes) {
      const auto one = make_decoder(recipe, 1, tables[s]);
      for (const KvType kv : {KvType::f32, KvType::f16, KvType::q8, KvType::bf16}) {
        if (s > 0 && static_cast<int>(kv) != s % 4) continue;  // all types on the best set, one each on the others
        const std::vector<Row> plain = Plain(*one, kv)(text);
        for (int threads = 1; threads <= 4; threads++) test_all(recipe, tables[s], kv, threads, plain, text);
      }
    }
  const Tokens long_text = Random(4).tokens(1200);
  for (const KvType kv : {KvType::f32, KvType::f16, KvType::q8, KvType::bf16}) test_long(kRecipes[0], tables[0], kv, long_text);
  return check.finish();
}
