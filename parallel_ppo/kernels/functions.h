/* exp, log, tanh and sums with one result on every CPU. libm, NumPy and torch choose theirs by CPU and version, so none of them is called.
 * Each function is a polynomial in a fixed order with the fused operations written out; vectors of either width and single numbers get the same
 * bits. */
#ifndef PARALLEL_PPO_FUNCTIONS_H
#define PARALLEL_PPO_FUNCTIONS_H

#include "vector.h"
#include <math.h>

/* e^a = 2^n e^r with |r| at most log(2) / 2: one unit in the last place off at most. The power is applied in two halves, so that results below the
 * normal numbers are rounded once. A NaN stays. */
INLINE vec v_exp(vec a) {
    const vec x = v_at_most(89.0f, v_at_least(-104.0f, a)), n = v_round(v_mul(x, v_set(1.44269504088896341f)));
    const vec r = v_fnma(n, v_set(-2.12194440e-4f), v_fnma(n, v_set(0.693359375f), x));
    const vec half = v_round(v_mul(n, v_set(0.5f)));
    vec p = v_set(1.9875691500e-4f);
    p = v_fma(p, r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set(1.0f));
    return v_mul(v_mul(p, v_power_of_two(half)), v_power_of_two(v_sub(n, half)));
}

/* log(a) = n log(2) + log(1 + f): one unit in the last place off at most. -inf of 0, NaN of what is negative. */
INLINE vec v_log(vec a) {
    const vec tiny = v_set(1.17549435e-38f), up = v_where_less(a, tiny, v_set(8388608.0f), v_set(1.0f));
    vec rest, p = v_set(7.0376836292e-2f);
    const vec n = v_sub(v_exponent(v_mul(a, up), &rest), v_where_less(a, tiny, v_set(23.0f), v_zero()));
    const vec f = v_sub(rest, v_set(1.0f)), s = v_mul(f, f);
    p = v_fma(p, f, v_set(-1.1514610310e-1f));
    p = v_fma(p, f, v_set(1.1676998740e-1f));
    p = v_fma(p, f, v_set(-1.2420140846e-1f));
    p = v_fma(p, f, v_set(1.4249322787e-1f));
    p = v_fma(p, f, v_set(-1.6668057665e-1f));
    p = v_fma(p, f, v_set(2.0000714765e-1f));
    p = v_fma(p, f, v_set(-2.4999993993e-1f));
    p = v_fma(p, f, v_set(3.3333331174e-1f));
    p = v_fma(n, v_set(-2.12194440e-4f), v_mul(v_mul(p, f), s));
    p = v_fma(n, v_set(0.693359375f), v_add(f, v_fnma(v_set(0.5f), s, p)));
    p = v_where_less(a, v_set(INFINITY), p, a); /* infinity and NaN stay */
    return v_where_less(v_zero(), a, p, v_where_less(a, v_zero(), v_set(NAN), v_sub(a, v_set(INFINITY))));
}

/* A quotient of polynomials in x squared, fitted to tanh over 0 to 8.6, where it is 1 to the last bit but one: 4e-7 off at most. */
INLINE vec v_tanh(vec a) {
    const vec x = v_at_most(8.6f, v_at_least(-8.6f, a)), s = v_mul(x, x);
    vec p = v_set(-1.3128024708985997e-11f), q = v_set(1.3223963151176577e-06f);
    p = v_fma(p, s, v_set(3.1801789646124234e-08f));
    p = v_fma(p, s, v_set(2.8505288355518132e-05f));
    p = v_fma(p, s, v_set(0.003892798675224185f));
    p = v_fma(p, s, v_set(0.13699395954608917f));
    p = v_fma(p, s, v_set(1.0f));
    q = v_fma(q, s, v_set(0.0003981914196629077f));
    q = v_fma(q, s, v_set(0.027335241436958313f));
    q = v_fma(q, s, v_set(0.4703272879123688f));
    q = v_fma(q, s, v_set(1.0f));
    return v_at_most(1.0f, v_at_least(-1.0f, v_div(v_mul(x, p), q)));
}

INLINE vec v_sigmoid(vec a) { return v_div(v_set(1.0f), v_add(v_set(1.0f), v_exp(v_sub(v_zero(), a)))); }

/* log(1 + e^a) = max(a, 0) + log(1 + u), where what 1 + u loses of u is added again. */
INLINE vec v_softplus(vec a) {
    const vec positive = v_at_least(0.0f, a), u = v_exp(v_sub(a, v_add(positive, positive))), sum = v_add(v_set(1.0f), u);
    const vec lost = v_div(v_sub(u, v_sub(sum, v_set(1.0f))), sum);
    return v_add(positive, v_add(v_log(sum), lost));
}

/* out[i] = FUNCTION(in[i]) for any number of elements, in place too */
#define DEFINE_EACH(name, FUNCTION)                                            \
    static inline void name(const float *in, size_t count, float *out) {       \
        size_t i = 0;                                                          \
        for (; i + VL <= count; i += VL) v_store(out + i, FUNCTION(v_load(in + i))); \
        if (i < count) {                                                       \
            float rest[VL] = {0};                                              \
            memcpy(rest, in + i, (count - i) * sizeof(float));                 \
            v_store(rest, FUNCTION(v_load(rest)));                             \
            memcpy(out + i, rest, (count - i) * sizeof(float));                \
        }                                                                      \
    }
DEFINE_EACH(each_exp, v_exp)
DEFINE_EACH(each_log, v_log)

/* Term i goes to sum i % 16; the sixteen are added in turn. */
#define DEFINE_SUM(name, TERM, SUM)                                                        \
    static inline SUM name(const TERM *x, size_t count) {                                  \
        SUM parts[16] = {0}, total = 0;                                                    \
        size_t i = 0;                                                                      \
        for (; i + 16 <= count; i += 16)                                                   \
            for (int k = 0; k < 16; k++) parts[k] += (SUM)x[i + k];                        \
        for (int k = 0; i + k < count; k++) parts[k] += (SUM)x[i + k];                     \
        for (int k = 0; k < 16; k++) total += parts[k];                                    \
        return total;                                                                      \
    }
DEFINE_SUM(sum_of, float, float)
DEFINE_SUM(wide_sum_of, float, double)

#endif
