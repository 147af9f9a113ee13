#include "decoding/account.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace forerun {
namespace {

constexpr double kShare = 0.01;      // the part of the time that drafters which do not pay may take, each
constexpr double kTrial = 2.5;       // plain steps that a drafter may take before it is known, and the most that is saved up for it
constexpr double kUnlikely = 0.4;    // which part of both there is for one that is unlikely to pay, as at a high temperature
constexpr double kLeastGain = 0.05;  // tokens that asking must be worth: less is noise, or what the steps around it take
// How deep a drafter is asked that does not pay, or of which nothing is known: if one guess pays, it is asked for more.
constexpr int kProbeDepth = 1;
constexpr double kDeeper = 0.7;      // what the next depth's guesses are taken to be worth at least, of those of the last known
constexpr double kDrift = 0.05;      // how far what was measured of a depth that is not asked for goes back to that, a time
constexpr double kWeight = 0.1;       // of a new observation: a few poor guesses must not make it look as if asking did not pay
constexpr double kOutlier = 3.0;     // a measurement counts at most as this many times what was expected
constexpr double kSamePrice = 0.02;  // a depth is not chosen anew for less of a change of the price
// Guesses that other drafters expect to be accepted are told apart at these numbers.
constexpr double kPromises[] = {0.25, 1.0, 2.5};

}  // namespace

void Level::add(double new_gain, double new_seconds) {
  if (seconds > 0.0) new_seconds = std::min(new_seconds, kOutlier * seconds);  // other programs run too
  seen++;
  const double weight = std::max(kWeight, 1.0 / static_cast<double>(seen));
  gain += weight * (new_gain - gain);
  seconds += weight * (new_seconds - seconds);
}

Account::Account(bool promising) : saved(promising ? kTrial : kUnlikely * kTrial), promising_(promising) {}

void Account::save(double steps) {
  const double part = promising_ ? 1.0 : kUnlikely;
  saved = std::min(saved + kShare * part * steps, kTrial * part);
}

int Account::depth(int promise, double price, int most) {
  auto& [then, depth] = found_[{promise, most}];
  if (std::fabs(price - then) > kSamePrice * price) {
    depth = best_depth(promise, price, most);
    then = price;
  }
  return depth;
}

int Account::best_depth(int promise, double price, int most) const {
  const auto known = levels_.find(promise);
  if (known == levels_.end()) return 0;
  const std::vector<Level>& levels = known->second;
  const int count = static_cast<int>(levels.size());
  int best = 0;
  double value = kLeastGain, total = 0.0;
  for (int depth = 1; depth <= std::min(count, most); depth++) {
    const Level& level = levels[static_cast<size_t>(depth - 1)];
    total += level.gain - price * level.seconds;
    if (total > value) best = depth, value = total;
  }
  const Level& last = levels.back();
  const double before = count > 1 ? levels[static_cast<size_t>(count - 2)].gain : 0.0;
  const double next_gain = last.gain * std::max(kDeeper, before > 0.0 ? std::min(last.gain / before, 1.0) : 0.0);
  const double deeper = total + next_gain - price * last.seconds;
  return count < most && deeper > value ? count + 1 : best;
}

void Account::add(int promise, const std::vector<double>& gains, const std::vector<double>& seconds) {
  if (gains.empty() || gains.size() != seconds.size()) throw std::invalid_argument("account: as many gains as seconds are needed");
  found_.clear();
  std::vector<Level>& levels = levels_[promise];
  levels.resize(std::max(levels.size(), gains.size()));
  const double before = levels[gains.size() - 1].gain;
  for (size_t i = 0; i < gains.size(); i++) levels[i].add(gains[i], seconds[i]);
  for (size_t i = gains.size(); i < levels.size(); i++) {  // what was not seen changed alike, and may be as usual again
    const double last = levels[i - 1].gain;
    double& gain = levels[i].gain;
    if (0.0 < before && before < last) gain *= last / before;
    gain = std::min(gain + kDrift * (kDeeper * last - gain), last);
  }
}

Pace::Pace(std::shared_ptr<Account> account, double plain) : account_(std::move(account)), plain_(plain) {
  if (!account_ || !(plain > 0.0)) throw std::invalid_argument("pace: an account and the seconds of a plain step are needed");
}

bool Pace::hopeful() const { return account_->levels().empty() ? account_->promising() : account_->nodes > 0.1; }

std::optional<Pace::Asked> Pace::ask(double price, int nodes, int depth, const DraftTree* beside) {
  Account& account = *account_;
  const int most = std::min(nodes, depth);
  promise_ = promised(beside);
  depth_ = account.depth(promise_, price, most);
  paying_ = depth_ > 0;
  const bool goes_on = steps_ == 1 || (right_ && account.saved > -kTrial);
  if (!paying_ && account.saved <= 0.0 && !goes_on) {
    steps_ = 0;
    return std::nullopt;
  }
  steps_++;
  if (!paying_) depth_ = std::min(kProbeDepth, most);
  const int enough = paying_ ? std::max(depth_, static_cast<int>(2.0 * account.nodes) + 2) : depth_ + 1;
  return Asked{std::min(nodes, enough), depth_};
}

void Pace::gained(const std::vector<double>& gains, int nodes, double seconds) {
  Account& account = *account_;
  seconds_ = seconds;
  if (!paying_) {
    // the prompt is read once, whatever comes of it
    const double most = account.levels().empty() ? 1.0 : std::numeric_limits<double>::infinity();
    account.saved -= std::min(seconds / plain_, most);
  }
  if (nodes != 0 || account.nodes != 0.0) account.nodes += (nodes - account.nodes) * (account.nodes != 0.0 ? kWeight : 1.0);
  if (steps_ < 2) return;
  const size_t reached = std::max(gains.size(), size_t(1)), asked = std::max(reached, static_cast<size_t>(std::max(depth_, 0)));
  std::vector<double> worth = gains, took(reached, seconds / static_cast<double>(reached));
  worth.resize(asked, 0.0);
  took.resize(asked, 0.0);
  account.add(promise_, worth, took);
}

void Pace::passed(double price, double seconds, bool right) {
  right_ = right && price * seconds_ < depth_;  // and what such a guess saves is more than it costs
  account_->save(seconds / plain_);
}

int promised(const DraftTree* tree) {
  if (tree == nullptr || tree->size() == 1) return 0;
  const std::vector<double>& chances = tree->chances();
  if (!tree->proposals().empty() || chances.empty()) return 1;
  const double accepted = std::accumulate(chances.begin(), chances.end(), 0.0) - chances[0];
  return static_cast<int>(std::count_if(std::begin(kPromises), std::end(kPromises), [&](double bound) { return accepted > bound; }));
}

}  // namespace forerun
