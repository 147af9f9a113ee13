#include "drafting/suffix.h"

#include <algorithm>
#include <queue>
#include <stdexcept>

namespace forerun {
namespace {

constexpr int kCounted = 16;     // states whose count a token raises: endings of the text, the longest first
constexpr int kEdges = 64;       // of a state's edges, the newest so many are looked at
constexpr size_t kMatches = 2;   // matches that a node's guesses come from
constexpr int kPassage = 2;      // tokens of a match that is worth a detour

constexpr int32_t kMostTokens = 1 << 29;

// A vector that grows by a quarter: memory matters here more than copies.
template <class T>
void push(std::vector<T>& v, const T& value) {
  if (v.size() == v.capacity()) v.reserve(v.size() + v.size() / 4 + 16);
  v.push_back(value);
}

uint64_t mix(int32_t state, int32_t token) {
  uint64_t x = static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32 | static_cast<uint32_t>(token);
  x *= 0x9E3779B97F4A7C15u;
  return x ^ x >> 29;
}

int bucket(int32_t length) {
  constexpr int32_t kEnds[] = {1, 2, 3, 4, 6, 9, 14, 22, 40};
  return static_cast<int>(std::lower_bound(std::begin(kEnds), std::end(kEnds), length) - std::begin(kEnds));
}

constexpr double kLengths[] = {1, 2, 3, 4, 5.5, 8, 12, 18, 30, 60};  // what a bucket's prior is for

}  // namespace

SuffixIndex::SuffixIndex() : table_(16, -1) { states_.push_back({0, -1, 0, 0, -1}); }

size_t SuffixIndex::bytes() const {
  return states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) + table_.capacity() * sizeof(int32_t);
}

void SuffixIndex::extend(int32_t token) {
  if (tokens_ >= kMostTokens) throw std::length_error("suffix index: too many tokens");
  tokens_++;
  const int32_t before = last_;
  const int32_t known = target(before, token);
  fresh_ = known < 0;
  if (known >= 0) {  // only at the beginning of a further text
    last_ = length(known) == length(before) + 1 ? known : split(before, token, known);
  } else {
    const int32_t state = add_state(length(before) + 1, 0, 0, tokens_);
    int32_t p = before;
    for (; p >= 0 && target(p, token) < 0; p = states_[static_cast<size_t>(p)].link) add_edge(p, token, state);
    if (p >= 0) {
      const int32_t child = target(p, token);
      const int32_t link = length(child) == length(p) + 1 ? child : split(p, token, child);
      states_[static_cast<size_t>(state)].link = link;
    }
    last_ = state;
  }
  int32_t p = last_;
  for (int i = 0; i < kCounted && p > 0; i++) {
    State& s = states_[static_cast<size_t>(p)];
    s.count++;
    s.end = tokens_;
    p = s.link;
  }
}

void SuffixIndex::end_text() {
  last_ = 0;
  fresh_ = false;
}

SuffixIndex::Match SuffixIndex::longest() const {
  if (last_ == 0) return {};
  const int32_t state = fresh_ ? states_[static_cast<size_t>(last_)].link : last_;
  return {state, length(state)};
}

SuffixIndex::Match SuffixIndex::shorter(Match match) const {
  const int32_t link = states_[static_cast<size_t>(match.state)].link;
  return link <= 0 ? Match{} : Match{link, std::min(match.length, length(link))};
}

SuffixIndex::Match SuffixIndex::follow(Match match, int32_t token) const {
  while (true) {
    const int32_t state = target(match.state, token);
    if (state >= 0) return {state, std::min(match.length + 1, length(state))};
    if (match.state == 0) return {};
    match = shorter(match);
  }
}

int32_t SuffixIndex::target(int32_t state, int32_t token) const {
  const int32_t e = table_[slot(state, token)];
  return e < 0 ? -1 : edge(e).target;
}

int32_t SuffixIndex::add_state(int32_t length, int32_t link, int32_t count, int32_t end) {
  push(states_, State{length, link, count, end, -1});
  return static_cast<int32_t>(states_.size()) - 1;
}

void SuffixIndex::add_edge(int32_t source, int32_t token, int32_t target) {
  if (edges_.size() * 5 >= table_.size() * 4) rehash(table_.size() * 2);
  State& s = states_[static_cast<size_t>(source)];
  push(edges_, Edge{source, token, target, s.edges});
  s.edges = static_cast<int32_t>(edges_.size()) - 1;
  table_[slot(source, token)] = s.edges;
}

// `child`, reached from `state` by `token`, stands for longer substrings than state + token: these shorter ones get a
// state of their own.
int32_t SuffixIndex::split(int32_t state, int32_t token, int32_t child) {
  const State whole = states_[static_cast<size_t>(child)];
  const int32_t clone = add_state(length(state) + 1, whole.link, whole.count, whole.end);
  std::vector<int32_t> edges;
  for (int32_t e = whole.edges; e >= 0; e = edge(e).next) edges.push_back(e);
  for (size_t i = edges.size(); i-- > 0;) add_edge(clone, edge(edges[i]).token, edge(edges[i]).target);
  for (int32_t p = state; p >= 0; p = states_[static_cast<size_t>(p)].link) {
    const int32_t e = table_[slot(p, token)];
    if (edge(e).target != child) break;
    edges_[static_cast<size_t>(e)].target = clone;
  }
  states_[static_cast<size_t>(child)].link = clone;
  return clone;
}

size_t SuffixIndex::slot(int32_t state, int32_t token) const {
  const size_t mask = table_.size() - 1;
  size_t at = mix(state, token) & mask;
  while (table_[at] >= 0 && (edge(table_[at]).source != state || edge(table_[at]).token != token)) at = (at + 1) & mask;
  return at;
}

void SuffixIndex::rehash(size_t slots) {
  table_.assign(slots, -1);
  table_.shrink_to_fit();
  for (size_t e = 0; e < edges_.size(); e++) table_[slot(edges_[e].source, edges_[e].token)] = static_cast<int32_t>(e);
}

SuffixDrafter::SuffixDrafter(std::shared_ptr<const SuffixIndex> past, const SuffixConstants& constants)
    : past_(std::move(past)), constants_(constants) {
  const SuffixConstants& c = constants_;
  if (!(c.least_chance > 0)) throw std::invalid_argument("suffix drafter: the least chance must be above 0");
  if (!(c.doubt > 0 && c.shorter >= 0 && c.shorter <= 1 && c.prior > 0 && c.window >= 1 && c.recent >= 0 && c.span > 0))
    throw std::invalid_argument("suffix drafter: a constant out of range");
  for (int b = 0; b < kBuckets; b++) {
    rates_[0][b] = {c.prior * kLengths[b] / (kLengths[b] + c.doubt), c.prior};
    rates_[1][b] = {c.prior * c.shorter, c.prior};
  }
  for (Rate& r : detours_) r = {c.prior * c.shorter, c.prior};
}

size_t SuffixDrafter::bytes() const { return index_.bytes() + text_.capacity() * sizeof(int32_t); }

void SuffixDrafter::observe(const int32_t* tokens, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (drafted_) learn(tokens[i]);
    detour_ = turn(here(), tokens[i]);
    push(text_, tokens[i]);
    index_.extend(tokens[i]);
    if (past_) in_past_ = past_->follow(in_past_, tokens[i]);
  }
  if (count > 0) drafted_ = false;
}

void SuffixDrafter::truncate(size_t length) {
  if (length >= text_.size()) return;
  std::vector<int32_t> kept(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(length));
  text_.clear();
  index_ = SuffixIndex();
  in_past_ = {};
  detour_ = {};
  drafted_ = false;
  observe(kept.data(), kept.size());
}

Draft SuffixDrafter::propose(const int32_t* prefix, size_t prefix_length, int nodes, int depth) {
  struct Candidate {
    double chance;
    int64_t made;  // earlier ones first among equals
    int32_t token, parent;
    int depth;
    Place before;
    bool operator<(const Candidate& other) const {
      return chance != other.chance ? chance < other.chance : made > other.made;
    }
  };
  drafted_ = true;
  Place place = here();
  for (size_t i = 0; i < prefix_length; i++) place = follow(place, prefix[i]);
  std::priority_queue<Candidate> queue;
  std::vector<Guess> guesses;
  int64_t made = 0;
  const auto grow = [&](const Place& from, double chance, int32_t node, int below) {
    if (below >= depth) return;
    guesses.clear();
    guess(from, chance, guesses);
    for (const Guess& g : guesses)
      if (g.chance >= constants_.least_chance) queue.push({g.chance, made++, g.token, node, below + 1, from});
  };
  Draft draft;
  grow(place, 1.0, 0, 0);
  while (!queue.empty() && static_cast<int>(draft.tokens.size()) < nodes) {
    const Candidate best = queue.top();
    queue.pop();
    draft.tokens.push_back(best.token);
    draft.parents.push_back(best.parent);
    draft.chances.push_back(static_cast<float>(best.chance));
    grow(follow(best.before, best.token), best.chance, static_cast<int32_t>(draft.tokens.size()), best.depth);
  }
  return draft;
}

// The matches to guess from, longest first, the text's own first among equals; states without edges say nothing. The
// detour is first, if it is as good as a match of so many tokens that none is longer, otherwise second.
std::vector<SuffixDrafter::Source> SuffixDrafter::sources(const Place& place) {
  Match own = place.own, past = place.past;
  std::vector<Source> found;
  found.reserve(kMatches + 1);
  while (found.size() < kMatches && (own.state > 0 || past.state > 0)) {
    const bool mine = own.length >= past.length;
    const SuffixIndex& index = mine ? index_ : *past_;
    Match& match = mine ? own : past;
    if (index.first_edge(match.state) >= 0)
      found.push_back({&index, match, &rates_[found.size()][bucket(match.length)]});
    match = index.shorter(match);
  }
  if (place.detour.at >= 0) {
    const bool second = !found.empty() && std::max(place.own.length, place.past.length) > place.detour.agreed + 1;
    found.insert(found.begin() + second, {nullptr, {}, &detours_[place.detour.agreed]});
  }
  return found;
}

SuffixDrafter::Place SuffixDrafter::follow(const Place& place, int32_t token) const {
  return {index_.follow(place.own, token), past_ ? past_->follow(place.past, token) : Match{}, turn(place, token)};
}

// The detour after a further token: a new one if the token breaks the longest match, on the likeliest way that it went
// on before; otherwise the one before, as long as the passage is followed.
SuffixDrafter::Detour SuffixDrafter::turn(const Place& place, int32_t token) const {
  Detour next;
  if (place.own.length >= kPassage && index_.target(place.own.state, token) < 0) {
    double best = 0;
    int32_t e = index_.first_edge(place.own.state);
    for (int looked = 0; e >= 0 && looked < kEdges; looked++, e = index_.edge(e).next) {
      const double w = weight(index_, index_.edge(e).target);
      if (w > best) best = w, next.at = index_.end(index_.edge(e).target);
    }
  } else if (place.detour.at >= 0 && place.detour.agreed < kAgreed &&
             text_[static_cast<size_t>(place.detour.at)] == token) {
    next = {place.detour.at + 1, place.detour.agreed + 1};
  }
  return next.at < static_cast<int32_t>(text_.size()) ? next : Detour{};
}

// What a state's number of occurrences counts for.
double SuffixDrafter::weight(const SuffixIndex& index, int32_t state) const {
  const double age = static_cast<double>(index.age(state));
  return index.count(state) * (1 + constants_.recent * constants_.span / (constants_.span + age));
}

void SuffixDrafter::learn(int32_t token) {
  for (const Source& source : sources(here())) {
    Rate& r = *source.rate;
    if (r.tries > constants_.window) {
      r.hits *= 0.5;
      r.tries *= 0.5;
    }
    r.tries += 1;
    if (source.index ? source.index->target(source.match.state, token) >= 0
                     : text_[static_cast<size_t>(detour_.at)] == token) {
      r.hits += 1;
      return;
    }
  }
}

void SuffixDrafter::guess(const Place& place, double chance, std::vector<Guess>& guesses) {
  for (const Source& source : sources(place)) {
    if (chance < constants_.least_chance) return;
    const size_t first = guesses.size();
    double total = 0;
    const auto add = [&](int32_t token, double weight) {
      for (size_t i = 0; i < first; i++)
        if (guesses[i].token == token) return;
      guesses.push_back({token, weight});
      total += weight;
    };
    if (source.index) {
      int32_t e = source.index->first_edge(source.match.state);
      for (int looked = 0; e >= 0 && looked < kEdges; looked++) {
        const SuffixIndex::Edge& edge = source.index->edge(e);
        add(edge.token, weight(*source.index, edge.target));
        e = edge.next;
      }
    } else {
      add(text_[static_cast<size_t>(place.detour.at)], 1);
    }
    const double hit = source.rate->hits / source.rate->tries;
    for (size_t i = first; i < guesses.size(); i++) guesses[i].chance = chance * hit * guesses[i].chance / total;
    chance *= 1 - hit;
  }
}

}  // namespace forerun
