// What verifying nodes of a tree is worth: tokens that the step emits more on average, less the price of the rows.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "decoding/curve.h"
#include "decoding/records.h"

namespace forerun {

// Guesses are verified if they promise at least so many tokens more than they cost: less is noise.
constexpr double kEdge = 0.05;

// What time costs: rows in seconds by the curve, seconds in tokens.
struct Price {
  const CostCurve& curve;
  double tokens_a_second;
  double of(int rows) const { return tokens_a_second * curve.beyond_plain(rows); }
};

// The k nodes but the root that are worth most verified, k and all, ascending. Drawn candidates are kept or dropped a whole
// depth at a time.
std::vector<int32_t> worth_most(const Judged& judged, const Price& price);

// Tokens that verifying these nodes gives, less what it costs.
double worth(const Judged& judged, const std::vector<int32_t>& kept, const Price& price);

// One drafter's part of what is verified.
struct Part {
  std::vector<double> gains;  // tokens that its nodes are worth, by depth, as deep as it guessed
  int nodes;                  // of its guesses that are verified
};

// Of `name`'s nodes (all, in a tree without origins). Together they gain no more than what is kept is worth beyond
// `without`, what could be had without that drafter.
Part part_of(const std::string& name, const Judged& judged, const std::vector<int32_t>& kept, const Price& price, double without);

}  // namespace forerun
