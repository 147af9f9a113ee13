// Fences around arrays that share a mapping. AddressSanitizer puts red zones around what malloc hands out only; where a
// build has it, these tell it the rest. Elsewhere they are nothing.
#pragma once
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define FORERUN_FENCES 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FORERUN_FENCES 1
#endif
#endif

#ifdef FORERUN_FENCES
#include <sanitizer/asan_interface.h>
#endif

namespace forerun {

#ifdef FORERUN_FENCES
constexpr size_t kFence = 64;  // bytes to leave between arrays
inline void forbid(const void* p, size_t bytes) { __asan_poison_memory_region(p, bytes); }
inline void allow(const void* p, size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
#else
constexpr size_t kFence = 0;
inline void forbid(const void*, size_t) {}
inline void allow(const void*, size_t) {}
#endif

}  // namespace forerun
