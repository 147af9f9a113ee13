// The decoder of the Llama family (Llama, SmolLM2, Mistral, Qwen2, Qwen3): one forward over rows.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "model/cache.h"
#include "runtime/buffer.h"
#include "runtime/threads.h"
#include "weights/packed.h"

namespace forerun {

struct DecoderShape {
  int layers = 0, hidden = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  float norm_eps = 0.0f;
  int window = 0;           // sliding window in positions, 0: none
  float rope_scale = 1.0f;  // multiplies cosines and sines
  std::vector<float> inv_freq;  // [head_dim / 2]
  int outputs = 0;          // of the head, if these are not the vocabulary
};

// What comes before the first layer. A language model's first layer reads the embedding of a row's token. That of a
// drafting head also reads the row's `state`: what is known of the text before that token.
struct Entry {
  enum class Kind {
    tokens,  // a language model
    eagle,   // hidden = fc(embedding, state); the first layer has no norm of its own (EAGLE, arXiv 2401.15077)
    eagle3,  // hidden = state; the first layer's queries, keys and values read (embedding, state) (EAGLE-3, 2503.01840)
  };
  Kind kind = Kind::tokens;
  PackedLinear fc;                             // eagle: [hidden, 2 hidden]
  std::vector<float> embed_norm, state_norm;   // [hidden], of the two before they are joined, or empty
  bool residual_is_normed = false;             // eagle3: hidden is the normed state
  bool hands_on_normed = false;                // the last state is handed out after the norm, not before it
};

struct LayerWeights {
  PackedLinear q, k, v, o, gate, up, down;
  std::vector<float> input_norm, post_norm;  // [hidden]
  std::vector<float> q_norm, k_norm;         // [head_dim], or empty
};

struct DecoderWeights {
  Entry entry;
  PackedLinear embed;  // [vocab, hidden]
  PackedLinear head;   // empty when the head is the embedding
  std::vector<float> norm;  // empty: a drafting head without one
  std::vector<LayerWeights> layers;
};

constexpr size_t kMostRows = size_t(1) << 20;  // of one forward
// Of a linear layer. Within a tile of so many inputs, and within a row of so many outputs, int counts far enough.
constexpr int kMostInputs = 1 << 24, kMostOutputs = 1 << 28;

// Rows of one forward. Rows of one cache are adjacent; a row follows its parent, or its cache's last committed token.
// A batch that continues has one cache, and its rows are staged behind the rows staged already: parents count from the
// first of these.
struct Batch {
  std::vector<int32_t> tokens;   // [rows]
  std::vector<int32_t> parents;  // [rows] index of an earlier row of the same cache, or -1
  std::vector<int32_t> owners;   // [rows] index into caches, not decreasing
  std::vector<Cache*> caches;
  std::vector<int32_t> logits;  // rows whose logits are wanted
  std::vector<int32_t> taps;    // hidden states wanted: 0 the embedding's output, l layer l's, `layers` the last, after the
                                // norm (of a drafting head: as it hands it on)
  std::vector<float> states = {};  // [rows][hidden] for a drafting head, else empty
  bool continues = false;
  Linear more = {};  // outputs that follow the head's, of the same inputs and format; its tiles lengthen a row of logits

  int rows() const { return static_cast<int>(tokens.size()); }
};

// Where a forward spent its time, in seconds.
struct Profile {
  double linear = 0, attention = 0, head = 0, other = 0;
};

class Decoder {
 public:
  // Throws std::invalid_argument when weights and shape do not fit each other, or a size is too large.
  Decoder(DecoderShape shape, DecoderWeights weights, std::shared_ptr<Team> team, const Kernels* kernels);

  // The first `layers` layers of another decoder, then its norm and head. The weights are shared.
  Decoder(const Decoder& whole, int layers);
  ~Decoder();

  const DecoderShape& shape() const { return shape_; }
  const DecoderWeights& weights() const { return *weights_; }
  int outputs() const;        // logits of a row
  int logits_stride() const;  // floats from one row of logits to the next: the head's outputs rounded up to a tile

  // Computes and stages the rows. logits: [batch.logits.size()][logits_stride(), and batch.more's tiles]; features: [rows][taps][hidden].
  // Threads that call it at once take turns. Throws std::invalid_argument when the batch contradicts itself, the model or
  // its caches, std::runtime_error when another thread is using a cache, std::bad_alloc; the stages are as before then.
  void forward(Batch batch, float* logits, float* features);

  Profile profile();  // of the last forward

 private:
  friend class Forward;
  DecoderShape shape_;
  std::shared_ptr<const DecoderWeights> weights_;
  std::shared_ptr<Team> team_;
  const Kernels* kernels_;
  Buffer workspace_;
  Profile profile_;
};

}  // namespace forerun
