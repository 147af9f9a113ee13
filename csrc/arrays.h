// Arrays that Python hands over, of exactly the type that is asked for: no conversion goes unnoticed.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace forerun {

// A vector of any stride. Bind it with .noconvert().
template <class T>
using Vector = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::device::cpu>;

// A copy, which stays as it is whatever other Python threads do to the array.
template <class T>
std::vector<T> copy(const Vector<T>& a) {
  std::vector<T> values(a.shape(0));
  const auto* from = reinterpret_cast<const char*>(a.data());
  const int64_t step = a.stride(0) * static_cast<int64_t>(sizeof(T));
  for (size_t i = 0; i < values.size(); i++) std::memcpy(&values[i], from + static_cast<int64_t>(i) * step, sizeof(T));  // not always aligned
  return values;
}

}  // namespace forerun
