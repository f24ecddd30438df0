// For the files of one instruction set: see internal.h on why the standard library's templates stay out.
#ifndef QUIRE_ISA_COMMON_H
#define QUIRE_ISA_COMMON_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "half.h"
#include "isa.h"
#include "layout.h"

#if defined(_MSC_VER) && !defined(__clang__)
#define QUIRE_INLINE __forceinline
#define QUIRE_NOINLINE __declspec(noinline)
#define QUIRE_UNROLL
#define QUIRE_FORGET(pointer)
#define QUIRE_NOW(vector)
#define QUIRE_PREFETCH(address) _mm_prefetch(reinterpret_cast<const char *>(address), _MM_HINT_T0)
#else
#define QUIRE_INLINE inline __attribute__((always_inline))
#define QUIRE_NOINLINE __attribute__((noinline))
// Hide from the compiler what a pointer points to: or it loads far ahead, and then saves and reloads what
// its registers cannot hold.
#define QUIRE_FORGET(pointer) __asm__("" : "+r"(pointer))
// Have a vector (of x86) ready at this place: or sums are put off, and all their parts saved until then.
#define QUIRE_NOW(vector) __asm__("" : "+v"(vector))
#define QUIRE_PREFETCH(address) __builtin_prefetch(address)
#if defined(__clang__)
#define QUIRE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define QUIRE_UNROLL _Pragma("GCC unroll 32")
#endif
#endif

#endif
