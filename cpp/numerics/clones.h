// Loops compiled twice, for any processor of the family and for those with AVX2, of which the loader takes one.
//
// AVX2 has no fused multiply-add of its own: both give the same bits.
#pragma once

#include <cstdint>  // defines __GLIBC__ where that is the library

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_THREAD__) && \
    (!defined(__clang__) || __clang_major__ >= 14)
#define COPPICE_CLONES __attribute__((target_clones("default", "avx2")))
#else
#define COPPICE_CLONES
#endif
