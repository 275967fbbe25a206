/* One vector type for two instruction sets.
 *
 * A lane is always a channel (or a sample), never a term of a sum, and every multiply-add is written out as one fused operation.
 * So the width of the vector does not change the order of any sum: both variants give the same bits.
 */
#ifndef PARALLEL_PPO_VECTOR_H
#define PARALLEL_PPO_VECTOR_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("nounroll")
#else
#define UNROLL _Pragma("GCC unroll 64")
#define ROLLED _Pragma("GCC unroll 1")
#endif

#ifdef __AVX512F__

#define VL 16
typedef __m512 vec;
typedef __m128i vec_index; /* one byte per lane */

INLINE vec v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vec a) { _mm512_storeu_ps(p, a); }
INLINE vec v_set(float a) { return _mm512_set1_ps(a); }
INLINE vec v_add(vec a, vec b) { return _mm512_add_ps(a, b); }
INLINE vec v_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
INLINE vec v_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
INLINE vec v_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }   /* a b + c */
INLINE vec v_fnma(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a b */
INLINE vec v_div(vec a, vec b) { return _mm512_div_ps(a, b); }
INLINE vec v_sqrt(vec a) { return _mm512_sqrt_ps(a); }
/* The order of the operands lets a NaN through; of the next two, one in `a`. */
INLINE vec v_relu(vec a) { return _mm512_max_ps(_mm512_setzero_ps(), a); }
INLINE vec v_at_least(float least, vec a) { return _mm512_max_ps(v_set(least), a); }
INLINE vec v_at_most(float most, vec a) { return _mm512_min_ps(v_set(most), a); }
INLINE vec v_where_positive(vec condition, vec a) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(condition, _mm512_setzero_ps(), _CMP_GT_OQ), a);
}
INLINE vec v_round(vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* 2 to the power of a whole number, -126 to 127 */
INLINE vec v_power_of_two(vec n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
/* The whole number n for which a 2^-n is in [sqrt(1/2), sqrt(2)), and that product; for normal numbers. */
INLINE vec v_exponent(vec a, vec *rest) {
    const __m512i bits = _mm512_castps_si512(a), n = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(0x3f3504f3)), 23);
    *rest = _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(n, 23)));
    return _mm512_cvtepi32_ps(n);
}
INLINE vec v_where_less(vec a, vec b, vec yes, vec no) { return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), yes); }
INLINE vec_index v_index(int k) { return _mm_set1_epi8((char)k); }
/* A NaN is taken, and stays. */
INLINE void v_take_larger(vec *best, vec_index *index, vec a, vec_index k) {
    __mmask16 is_number = _mm512_cmp_ps_mask(*best, *best, _CMP_ORD_Q);
    __mmask16 larger = _mm512_mask_cmp_ps_mask(is_number, a, *best, _CMP_NLE_UQ);
    *best = _mm512_mask_mov_ps(*best, larger, a);
    *index = _mm_mask_mov_epi8(*index, larger, k);
}
INLINE vec_index v_index_load(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE void v_index_store(uint8_t *p, vec_index a) { _mm_storeu_si128((__m128i *)p, a); }
INLINE vec v_where_index(vec_index index, vec_index k, vec a) {
    return _mm512_maskz_mov_ps(_mm_cmpeq_epi8_mask(index, k), a);
}

#else

#define VL 8
typedef __m256 vec;
typedef __m256i vec_index; /* one 32-bit number per lane; one byte in memory */

INLINE vec v_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void v_store(float *p, vec a) { _mm256_storeu_ps(p, a); }
INLINE vec v_set(float a) { return _mm256_set1_ps(a); }
INLINE vec v_add(vec a, vec b) { return _mm256_add_ps(a, b); }
INLINE vec v_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
INLINE vec v_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
INLINE vec v_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vec v_fnma(vec a, vec b, vec c) { return _mm256_fnmadd_ps(a, b, c); }
INLINE vec v_div(vec a, vec b) { return _mm256_div_ps(a, b); }
INLINE vec v_sqrt(vec a) { return _mm256_sqrt_ps(a); }
INLINE vec v_relu(vec a) { return _mm256_max_ps(_mm256_setzero_ps(), a); }
INLINE vec v_at_least(float least, vec a) { return _mm256_max_ps(v_set(least), a); }
INLINE vec v_at_most(float most, vec a) { return _mm256_min_ps(v_set(most), a); }
INLINE vec v_where_positive(vec condition, vec a) {
    return _mm256_and_ps(_mm256_cmp_ps(condition, _mm256_setzero_ps(), _CMP_GT_OQ), a);
}
INLINE vec v_round(vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vec v_power_of_two(vec n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
INLINE vec v_exponent(vec a, vec *rest) {
    const __m256i bits = _mm256_castps_si256(a), n = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(0x3f3504f3)), 23);
    *rest = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(n, 23)));
    return _mm256_cvtepi32_ps(n);
}
INLINE vec v_where_less(vec a, vec b, vec yes, vec no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
INLINE vec_index v_index(int k) { return _mm256_set1_epi32(k); }
INLINE void v_take_larger(vec *best, vec_index *index, vec a, vec_index k) {
    vec is_number = _mm256_cmp_ps(*best, *best, _CMP_ORD_Q);
    vec larger = _mm256_and_ps(is_number, _mm256_cmp_ps(a, *best, _CMP_NLE_UQ));
    *best = _mm256_blendv_ps(*best, a, larger);
    *index = _mm256_blendv_epi8(*index, k, _mm256_castps_si256(larger));
}
INLINE vec_index v_index_load(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
INLINE void v_index_store(uint8_t *p, vec_index a) {
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(words, words));
}
INLINE vec v_where_index(vec_index index, vec_index k, vec a) {
    return _mm256_and_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(index, k)), a);
}

#endif

INLINE vec v_zero(void) { return v_set(0.0f); }

#endif
