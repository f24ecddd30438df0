// Which instruction sets this processor has, and which is in use.
#include "isa.h"

#include <string.h>

#include <atomic>

#if defined(__x86_64__) || defined(_M_X64)
#define QUIRE_X86 1
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(_M_ARM64)
#include <windows.h>
#endif

namespace quire {
namespace {

struct Processor {
  bool avx2 = false;
  bool avxvnni = false;
  bool avx512vnni = false;
  bool dot_product = false;  // of ARM
};

#if defined(QUIRE_X86)
struct Registers {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
#if defined(_MSC_VER)
  int values[4];
  __cpuidex(values, static_cast<int>(leaf), static_cast<int>(subleaf));
  r = {static_cast<uint32_t>(values[0]), static_cast<uint32_t>(values[1]),
       static_cast<uint32_t>(values[2]), static_cast<uint32_t>(values[3])};
#else
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
#endif
  return r;
}

// Which registers the operating system saves: bit 1 SSE, 2 AVX, 5 to 7 AVX-512.
uint64_t saved_registers() {
#if defined(_MSC_VER)
  return _xgetbv(0);
#else
  uint32_t low, high;
  __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
#endif
}

bool has_all(uint32_t value, uint32_t bits) { return (value & bits) == bits; }

Processor look_at_processor() {
  Processor processor;
  constexpr uint32_t kFma = 1u << 12, kXsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
  if (!has_all(cpuid(1, 0).c, kFma | kXsave | kAvx | kF16c)) return processor;
  const uint64_t saved = saved_registers();
  if ((saved & 0x06) != 0x06) return processor;
  const Registers seven = cpuid(7, 0);
  processor.avx2 = has_all(seven.b, 1u << 5);
  processor.avxvnni = processor.avx2 && seven.a >= 1 && has_all(cpuid(7, 1).a, 1u << 4);
  constexpr uint32_t kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31, kVnni = 1u << 11;
  processor.avx512vnni = processor.avx2 && (saved & 0xe6) == 0xe6 &&
                         has_all(seven.b, kF | kDq | kBw | kVl) && has_all(seven.c, kVnni);
  return processor;
}
#else
Processor look_at_processor() {
  Processor processor;
#if defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long kAsimdDotProduct = 1ul << 20;
  processor.dot_product = (getauxval(AT_HWCAP) & kAsimdDotProduct) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
  processor.dot_product = true;  // every processor that macOS runs on
#elif defined(_M_ARM64)
  processor.dot_product = IsProcessorFeaturePresent(43) != 0;  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
#endif
  return processor;
}
#endif

// The table of one name, if this build and this processor have it; without a name the best.
const Isa *find_isa(const char *name) {
  const Processor processor = look_at_processor();
  const Isa *candidates[] = {
      processor.avx512vnni ? isa_avx512vnni() : nullptr,
      processor.avxvnni ? isa_avxvnni() : nullptr,
      processor.avx2 ? isa_avx2() : nullptr,
      processor.dot_product ? isa_neon() : nullptr,
      isa_portable(),
  };
  for (const Isa *isa : candidates) {
    if (isa && (!name || strcmp(isa->name, name) == 0)) return isa;
  }
  return nullptr;
}

std::atomic<const Isa *> chosen{nullptr};

}  // namespace

const Isa &current_isa() {
  const Isa *isa = chosen.load(std::memory_order_acquire);
  if (!isa) {
    isa = find_isa(nullptr);
    chosen.store(isa, std::memory_order_release);
  }
  return *isa;
}

}  // namespace quire

const char *qk_isa(void) { return quire::current_isa().name; }

int32_t qk_set_isa(const char *name) {
  const quire::Isa *isa = name ? quire::find_isa(name) : nullptr;
  if (!isa) return QK_ERROR_ARGUMENT;
  quire::chosen.store(isa, std::memory_order_release);
  return 0;
}
