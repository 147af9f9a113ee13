#include "runtime/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "runtime/buffer.h"

namespace forerun {

double read_bandwidth(Team& team, size_t bytes, int repeats) {
  constexpr size_t kLine = 64, kPiece = size_t(1) << 20;
  const size_t pieces = std::max<size_t>(1, bytes / kPiece);
  Buffer buffer(pieces * kPiece, true);
  uint8_t* data = buffer.as<uint8_t>();
  std::memset(data, 1, pieces * kPiece);
  std::atomic<uint64_t> sink{0};
  double best = 0.0;
  for (int r = 0; r < repeats; r++) {
    const auto start = std::chrono::steady_clock::now();
    team.for_each(static_cast<int64_t>(pieces), 1, [&](int64_t piece, int64_t) {
      const uint8_t* at = data + static_cast<size_t>(piece) * kPiece;
      uint64_t sum = 0;
      for (size_t i = 0; i < kPiece; i += kLine) {  // one word fetches its line
        uint64_t word;
        std::memcpy(&word, at + i, sizeof word);
        sum += word;
      }
      sink += sum;
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(pieces * kPiece) / seconds);
  }
  return sink == 0 ? 0.0 : best;
}

}  // namespace forerun
