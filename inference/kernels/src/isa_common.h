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
#else
#define QUIRE_INLINE inline __attribute__((always_inline))
#define QUIRE_NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define QUIRE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define QUIRE_UNROLL _Pragma("GCC unroll 32")
#endif
#endif

#endif
