/* Flat vectors: the sum of the microbatches' gradients, Adam, and images element by element. One pass over memory each. */
#include "flat.h"
#include "vector.h"

enum { CHUNK = 256, DEPTH = 32, BYTES = 2048, ROWS = 65536 }; /* ROWS: as many squares of bytes fit a 32-bit sum */

INLINE void add_to(float *sum, const float *a, size_t size) {
    for (size_t i = 0; i < size; i += VL) v_store(sum + i, v_add(v_load(sum + i), v_load(a + i)));
}

/* out = the sum of `microbatches` vectors that are `stride` floats apart, in the order of `ppo.tree_sum`: adjacent pairs, level by level, an odd last
 * one passes up. Returns the sum of its squares; `count` is a multiple of 16. */
double flat_tree_sum(const float *vectors, size_t stride, int microbatches, size_t count, float *out) {
    float waiting[DEPTH][CHUNK] __attribute__((aligned(64))); /* sums of 2^k microbatches that have no partner yet, the largest first */
    double squares[16] = {0}, total = 0;
    for (size_t at = 0; at < count; at += CHUNK) {
        const size_t size = count - at < CHUNK ? count - at : CHUNK;
        int depth = 0;
        for (int microbatch = 0; microbatch < microbatches; microbatch++) {
            const float *in = vectors + microbatch * stride + at;
            /* As many sums wait for this microbatch as there are ones at the end of its number; for the last microbatch, all of them. */
            const int partners = microbatch + 1 == microbatches ? depth : __builtin_ctz(~(unsigned)microbatch);
            if (partners == 0) memcpy(waiting[depth++], in, size * sizeof(float));
            else add_to(waiting[depth - 1], in, size);
            for (int merged = 1; merged < partners; merged++, depth--) add_to(waiting[depth - 2], waiting[depth - 1], size);
        }
        memcpy(out + at, waiting[0], size * sizeof(float));
        for (size_t i = 0; i < size; i += 16)
            for (int k = 0; k < 16; k++) squares[k] += (double)waiting[0][i + k] * waiting[0][i + k];
    }
    for (int k = 0; k < 16; k++) total += squares[k];
    return total;
}

/* As `optimizers.step`; `count` is a multiple of 16. */
void flat_adam_into(const float *const from[3], float *const into[3], const float *gradient, size_t count, double scale, adam_numbers n) {
    const vec keep1 = v_set(n.beta1), keep2 = v_set(n.beta2), add1 = v_set(1 - n.beta1), add2 = v_set(1 - n.beta2);
    for (size_t i = 0; i < count; i += VL) {
        const vec g = v_mul(v_load(gradient + i), v_set(scale));
        const vec m = v_fma(add1, g, v_mul(keep1, v_load(from[1] + i)));
        const vec v = v_fma(v_mul(add2, g), g, v_mul(keep2, v_load(from[2] + i)));
        v_store(into[1] + i, m);
        v_store(into[2] + i, v);
        const vec denominator = v_fma(v_sqrt(v), v_set(n.correction), v_set(n.epsilon));
        v_store(into[0] + i, v_fnma(v_set(n.rate), v_div(m, denominator), v_load(from[0] + i)));
    }
}

void flat_adam(float *parameters, const float *gradient, float *first, float *second, size_t count, double scale, double beta1,
               double beta2, double rate, double correction, double epsilon) {
    float *const vectors[] = {parameters, first, second};
    flat_adam_into((const float *const *)vectors, vectors, gradient, count, scale, (adam_numbers){beta1, beta2, rate, correction, epsilon});
}

void flat_rmsprop(float *parameters, const float *gradient, float *second, size_t count, double scale, double alpha, double rate,
                  double epsilon, int inside) {
    const vec within = v_set(inside ? epsilon : 0), behind = v_set(inside ? 0 : epsilon), keep = v_set(alpha), add = v_set(1 - alpha);
    for (size_t i = 0; i < count; i += VL) {
        const vec g = v_mul(v_load(gradient + i), v_set(scale));
        const vec v = v_fma(v_mul(add, g), g, v_mul(keep, v_load(second + i)));
        v_store(second + i, v);
        const vec denominator = v_add(v_sqrt(v_add(v, within)), behind);
        v_store(parameters + i, v_fnma(v_set(rate), v_div(g, denominator), v_load(parameters + i)));
    }
}

/* Rows of `count` bytes, each less its mean, times its scale, in `levels` of a byte around 127.5, clamped. */
void flat_whiten(const uint8_t *restrict pixels, size_t rows, size_t count, const float *restrict mean, const float *restrict scale, float levels,
                 uint8_t *restrict out) {
    for (size_t row = 0; row < rows; row++, pixels += count, out += count)
        for (size_t i = 0; i < count; i++) {
            float value = ((float)pixels[i] - mean[i]) * scale[i] * levels + 127.5f;
            value = value > 255.0f ? 255.0f : value;
            out[i] = (uint8_t)(int32_t)__builtin_rintf(value > 0.0f ? value : 0.0f);
        }
}

void flat_byte_sums(const uint8_t *pixels, size_t rows, size_t count, double *sums, double *squares) {
    for (size_t at = 0; at < count; at += BYTES) {
        const size_t size = count - at < BYTES ? count - at : BYTES;
        for (size_t i = 0; i < size; i++) sums[at + i] = squares[at + i] = 0;
        for (size_t first = 0; first < rows; first += ROWS) {
            uint32_t sum[BYTES] = {0}, square[BYTES] = {0};
            for (size_t row = first; row < rows && row < first + ROWS; row++) {
                const uint8_t *in = pixels + row * count + at;
                for (size_t i = 0; i < size; i++) {
                    const uint32_t value = in[i];
                    sum[i] += value;
                    square[i] += value * value;
                }
            }
            for (size_t i = 0; i < size; i++) {
                sums[at + i] += sum[i];
                squares[at + i] += square[i];
            }
        }
    }
}
