/* What Python computes on arrays where NumPy, LAPACK or libm would choose by CPU or version: functions, sums, normal draws and the first weights. */
#include "api.h"
#include "functions.h"

DEFINE_EACH(each_tanh, v_tanh)
DEFINE_EACH(each_softplus, v_softplus)
DEFINE_SUM(sum_of_wide, double, double)

void array_exp(const float *in, size_t count, float *out) { each_exp(in, count, out); }
void array_log(const float *in, size_t count, float *out) { each_log(in, count, out); }
void array_tanh(const float *in, size_t count, float *out) { each_tanh(in, count, out); }
void array_softplus(const float *in, size_t count, float *out) { each_softplus(in, count, out); }

/* --- float64: the algorithms of fdlibm, without fused operations ------------------------------------------------------------------------- */

static double power_of_two(int n) {
    const int64_t bits = (int64_t)(n + 1023) << 52;
    double found;
    memcpy(&found, &bits, sizeof(found));
    return found;
}

static double wide_exp(double x) {
    if (x != x) return x;
    if (x > 709.782712893383973096) return INFINITY;
    if (x < -745.13321910194110842) return 0;
    const double n = rint(x * 1.44269504088896338700), high = x - n * 6.93147180369123816490e-01, low = n * 1.90821492927058770002e-10;
    const double r = high - low, s = r * r;
    const double c = r - s * (1.66666666666666019037e-01 + s * (-2.77777777770155933842e-03 + s * (6.61375632143793436117e-05 +
                         s * (-1.65339022054652515390e-06 + s * 4.13813679705723846039e-08))));
    const int half = (int)n / 2;
    return (1 + (r * c / (2 - c) - low + high)) * power_of_two(half) * power_of_two((int)n - half);
}

static double wide_log(double x) {
    if (!(x > 0)) return x == 0 ? -INFINITY : NAN;
    if (x == INFINITY) return x;
    int64_t bits, n = 0;
    if (x < 2.2250738585072014e-308) x *= 18014398509481984.0, n = -54;
    memcpy(&bits, &x, sizeof(bits));
    const int64_t more = (bits - 0x3fe6a09e667f3bcd) >> 52; /* the rest is in [sqrt(1/2), sqrt(2)) */
    bits -= more << 52, n += more;
    memcpy(&x, &bits, sizeof(x));
    const double f = x - 1, s = f / (2 + f), z = s * s, w = z * z, half = 0.5 * f * f, k = (double)n;
    const double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    const double odd = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    return k * 6.93147180369123816490e-01 - ((half - (s * (half + (even + odd)) + k * 1.90821492927058770002e-10)) - f);
}

void array_wide_exp(const double *in, size_t count, double *out) {
    for (size_t i = 0; i < count; i++) out[i] = wide_exp(in[i]);
}

void array_wide_log(const double *in, size_t count, double *out) {
    for (size_t i = 0; i < count; i++) out[i] = wide_log(in[i]);
}

/* --- sums -------------------------------------------------------------------------------------------------------------------------------- */

void array_row_sums(const float *in, size_t rows, size_t columns, float *out) {
    for (size_t row = 0; row < rows; row++) out[row] = sum_of(in + row * columns, columns);
}

void array_wide_row_sums(const double *in, size_t rows, size_t columns, double *out) {
    for (size_t row = 0; row < rows; row++) out[row] = sum_of_wide(in + row * columns, columns);
}

void array_column_sums(const float *in, size_t rows, size_t columns, float *out) {
    memset(out, 0, columns * sizeof(float));
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < columns; i++) out[i] += in[row * columns + i];
}

void array_wide_column_sums(const double *in, size_t rows, size_t columns, double *out) {
    memset(out, 0, columns * sizeof(double));
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < columns; i++) out[i] += in[row * columns + i];
}

/* --- normal draws ------------------------------------------------------------------------------------------------------------------------ */

INLINE double polynomial(double x, const double coefficients[8]) {
    double found = coefficients[7];
    for (int k = 6; k >= 0; k--) found = found * x + coefficients[k];
    return found;
}

/* The inverse of the normal distribution at uniform draws in [0, 1): Wichura's algorithm AS 241, 16 digits. Draws are multiples of 2^-53 and are
 * moved by half of that, so that none is 0. */
void array_normals(const double *uniform, size_t count, double *out) {
    static const double NEAR[] = {3.3871328727963666080e0, 1.3314166789178437745e+2, 1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                  4.5921953931549871457e+4, 6.7265770927008700853e+4, 3.3430575583588128105e+4, 2.5090809287301226727e+3},
                        BY_NEAR[] = {1.0, 4.2313330701600911252e+1, 6.8718700749205790830e+2, 5.3941960214247511077e+3,
                                     2.1213794301586595867e+4, 3.9307895800092710610e+4, 2.8729085735721942674e+4, 5.2264952788528545610e+3},
                        FAR[] = {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
                                 1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4},
                        BY_FAR[] = {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
                                    1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9},
                        TAIL[] = {6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
                                  2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7},
                        BY_TAIL[] = {1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
                                     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15};
    for (size_t i = 0; i < count; i++) {
        const double q = (uniform[i] - 0.5) + 0x1p-54;
        if (fabs(q) <= 0.425) {
            const double r = 0.180625 - q * q;
            out[i] = q * polynomial(r, NEAR) / polynomial(r, BY_NEAR);
            continue;
        }
        const double r = sqrt(-wide_log(0.5 - fabs(q)));
        const double size = r <= 5 ? polynomial(r - 1.6, FAR) / polynomial(r - 1.6, BY_FAR) : polynomial(r - 5, TAIL) / polynomial(r - 5, BY_TAIL);
        out[i] = q < 0 ? -size : size;
    }
}

/* --- orthonormal vectors ----------------------------------------------------------------------------------------------------------------- */

typedef double eight __attribute__((vector_size(64), aligned(8)));
enum { TOGETHER = 8 };

static double added(const eight *sum) {
    double total = 0;
    for (int k = 0; k < 8; k++) total += (*sum)[k];
    return total;
}

/* Takes from `v` what it shares with `count` orthonormal vectors, [count][length]. */
INLINE void take_away(const double *q, int count, size_t length, double *v) {
    eight dots[TOGETHER] = {{0}};
    double share[TOGETHER];
    for (size_t i = 0; i < length; i += 8) {
        const eight a = *(const eight *)(v + i);
        for (int k = 0; k < count; k++) dots[k] += *(const eight *)(q + k * length + i) * a;
    }
    for (int k = 0; k < count; k++) share[k] = added(&dots[k]);
    for (size_t i = 0; i < length; i += 8) {
        eight a = *(const eight *)(v + i);
        for (int k = 0; k < count; k++) a -= *(const eight *)(q + k * length + i) * share[k];
        *(eight *)(v + i) = a;
    }
}

/* Gram and Schmidt's vectors from those in `a` [count][length], in place; eight at a time leave the rest. The length is a multiple of 8. */
void array_orthonormal(double *a, size_t count, size_t length) {
    for (size_t first = 0; first < count; first += TOGETHER) {
        const size_t end = first + TOGETHER < count ? first + TOGETHER : count;
        for (size_t j = first; j < end; j++) {
            double *v = a + j * length;
            eight squares = {0};
            for (size_t before = first; before < j; before++) take_away(a + before * length, 1, length, v);
            for (size_t i = 0; i < length; i += 8) squares += *(const eight *)(v + i) * *(const eight *)(v + i);
            const double size = sqrt(added(&squares));
            for (size_t i = 0; i < length; i++) v[i] /= size;
        }
        for (size_t j = end; j < count; j++) take_away(a + first * length, TOGETHER, length, a + j * length);
    }
}
