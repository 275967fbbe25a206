#include "ppo.h"
#include <math.h>
#include <string.h>

static const float HALF_LOG_TAU = 0.91893853320467274178f, ENTROPY_OF_ONE = 1.41893853320467274178f; /* log(2 pi) / 2, and 1/2 more */

/* --- as NumPy computes ------------------------------------------------------------------------------------------------------------------ */

typedef void (*numpy_loop)(char **arguments, const intptr_t *counts, const intptr_t *strides, void *data);

static void each(const numpy_function *function, float *values, intptr_t count) {
    char *arguments[] = {(char *)values, (char *)values};
    const intptr_t strides[] = {sizeof(float), sizeof(float)};
    ((numpy_loop)function->loop)(arguments, &count, strides, function->data);
}

static float sum(const numpy_function *add, const float *values, intptr_t count) {
    float total = 0;
    char *arguments[] = {(char *)&total, (char *)values, (char *)&total};
    const intptr_t strides[] = {0, sizeof(float), 0};
    ((numpy_loop)add->loop)(arguments, &count, strides, add->data);
    return total;
}

/* einsum's inner product: four sums in turn, sixteen terms at a time from the last four to the first. */
static float inner(const float *a, const float *b, int count) {
    float sums[4] = {0};
    int i = 0;
    for (; i + 16 <= count; i += 16)
        for (int part = 12; part >= 0; part -= 4)
            for (int k = 0; k < 4; k++) sums[k] = a[i + part + k] * b[i + part + k] + sums[k];
    for (; i < count; i += 4)
        for (int k = 0; k < 4 && i + k < count; k++) sums[k] = a[i + k] * b[i + k] + sums[k];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

static void row_times_matrix(const numpy_function *matmul, const float *row, const float *matrix, intptr_t rows, intptr_t columns, float *out) {
    const intptr_t one = sizeof(float), counts[] = {1, 1, rows, columns}, strides[] = {0, 0, 0, 0, one, columns * one, one, 0, one};
    char *arguments[] = {(char *)row, (char *)matrix, (char *)out};
    ((numpy_loop)matmul->loop)(arguments, counts, strides, matmul->data);
}

/* Bounds as float32; a NaN stays. */
static inline float clipped(float a, float least, float most) { return a < least ? least : a > most ? most : a; }

/* --- heads: `head_derivatives.differentiate` --------------------------------------------------------------------------------------------- */

typedef struct {
    float *log_prob, *entropy;                /* [B] */
    float *log_prob_by_output, *entropy_by_output; /* [B][K] */
} head;

/* One choice; the outputs start at `first` of K. */
static void categorical(const microbatch_settings *s, int component, int first, int samples, const float *outputs, const float *action, float *scratch,
                        head found) {
    const int all = s->network->outputs, size = s->network->choices[component];
    float *shifted = scratch, *probability = shifted + (size_t)samples * size, *total = probability + (size_t)samples * size, *log_total = total + samples;
    for (int b = 0; b < samples; b++) {
        const float *z = outputs + (size_t)b * all + first;
        float largest = z[0];
        for (int k = 1; k < size; k++) largest = z[k] > largest || z[k] != z[k] ? z[k] : largest;
        for (int k = 0; k < size; k++) shifted[b * size + k] = z[k] - largest;
    }
    memcpy(probability, shifted, sizeof(float) * samples * size);
    each(&s->exp, probability, (intptr_t)samples * size);
    for (int b = 0; b < samples; b++) total[b] = log_total[b] = sum(&s->add, probability + (size_t)b * size, size);
    each(&s->log, log_total, samples);
    for (int b = 0; b < samples; b++) {
        float *p = probability + (size_t)b * size, *log_p = shifted + (size_t)b * size;
        const int chosen = (int)action[b * s->network->components + component];
        for (int k = 0; k < size; k++) p[k] /= total[b], log_p[k] -= log_total[b];
        const float entropy = -inner(p, log_p, size);
        float *slope = found.log_prob_by_output + (size_t)b * all + first, *entropy_slope = found.entropy_by_output + (size_t)b * all + first;
        for (int k = 0; k < size; k++) slope[k] = -p[k], entropy_slope[k] = -p[k] * (log_p[k] + entropy);
        slope[chosen] += 1;
        found.log_prob[b] = component ? found.log_prob[b] + log_p[chosen] : log_p[chosen];
        found.entropy[b] = component ? found.entropy[b] + entropy : entropy;
    }
}

/* `deviation` and `inverse` are scratch, [K]; the first is exp(log_std) afterwards. */
static void gaussian(const microbatch_settings *s, int samples, const float *outputs, const float *action, float *deviation, float *inverse, float *terms,
                     head found) {
    const int size = s->network->outputs;
    for (int k = 0; k < size; k++) deviation[k] = s->network->log_std[k], inverse[k] = -s->network->log_std[k], terms[k] = s->network->log_std[k] + ENTROPY_OF_ONE;
    each(&s->exp, deviation, size);
    each(&s->exp, inverse, size);
    const float entropy = sum(&s->add, terms, size);
    for (int b = 0; b < samples; b++) {
        for (int k = 0; k < size; k++) {
            const size_t at = (size_t)b * size + k;
            const float scaled = (action[at] - outputs[at]) * inverse[k];
            terms[k] = -0.5f * (scaled * scaled) - (s->network->log_std[k] + HALF_LOG_TAU);
            found.log_prob_by_output[at] = scaled * inverse[k];
        }
        found.log_prob[b] = sum(&s->add, terms, size);
        found.entropy[b] = entropy;
    }
}

/* --- the loss --------------------------------------------------------------------------------------------------------------------------- */

enum { COLUMNS = 8 }; /* of scratch, [B] each */

size_t ppo_scratch_floats(const microbatch_settings *s, int samples) {
    return (size_t)samples * (COLUMNS + 4 * s->network->outputs) + 3 * s->network->outputs;
}

/* `ppo._value_gradient`: half the (clipped) squared error. */
static double value_gradient(const microbatch_settings *s, double clip_range, int samples, const float *value, ppo_batch batch, float *squares, float *slope) {
    const float most = (float)clip_range, least = (float)-clip_range;
    for (int b = 0; b < samples; b++) {
        const float error = value[b] - batch.target_return[b];
        squares[b] = error * error;
        slope[b] = error;
        if (s->clips_value) {
            const float moved = value[b] - batch.value[b], near = clipped(moved, least, most);
            const float near_error = batch.value[b] + near - batch.target_return[b], near_square = near_error * near_error;
            if (!(squares[b] >= near_square)) {
                squares[b] = near_square;
                slope[b] = near == moved ? near_error : 0;
            }
        }
    }
    return 0.5 * (double)sum(&s->add, squares, samples);
}

void ppo_loss_gradient(const microbatch_settings *s, ppo_scalars scalars, int samples, const float *outputs, const float *value, ppo_batch batch,
                       float *scratch, float *by_output, float *by_log_std, float *by_value, double *statistics) {
    const int size = s->network->outputs;
    float *ratio = scratch, *log_ratio = ratio + samples, *surrogate = log_ratio + samples, *by_log_prob = surrogate + samples;
    head found = {by_log_prob + samples, by_log_prob + 2 * samples, by_log_prob + 3 * samples, NULL};
    found.entropy_by_output = found.log_prob_by_output + (size_t)samples * size;
    float *rest = found.entropy_by_output + (size_t)samples * size, *deviation = rest;
    if (s->network->components)
        for (int c = 0, first = 0; c < s->network->components; first += s->network->choices[c], c++)
            categorical(s, c, first, samples, outputs, batch.action, rest, found);
    else gaussian(s, samples, outputs, batch.action, deviation, deviation + size, deviation + 2 * size, found);

    const float mean = (float)scalars.advantage_mean, scale = (float)scalars.advantage_scale, within = (float)scalars.clip_range;
    const float least = (float)(1 - scalars.clip_range), most = (float)(1 + scalars.clip_range), share = (float)(1 / s->batch_size);
    for (int b = 0; b < samples; b++) ratio[b] = log_ratio[b] = found.log_prob[b] - batch.log_prob[b];
    each(&s->exp, ratio, samples);
    int outside = 0;
    for (int b = 0; b < samples; b++) {
        const float advantage = (batch.advantage[b] - mean) * scale;
        const float free = ratio[b] * advantage, bounded = clipped(ratio[b], least, most) * advantage;
        surrogate[b] = free <= bounded || free != free ? free : bounded;
        by_log_prob[b] = (free <= bounded ? free : 0) * -share;
        outside += fabsf(ratio[b] - 1) > within;
        ratio[b] = ratio[b] - 1 - log_ratio[b];
    }
    const double policy_loss = -(double)sum(&s->add, surrogate, samples), entropy = (double)sum(&s->add, found.entropy, samples);
    const double divergence = (double)sum(&s->add, ratio, samples);
    const double value_loss = value_gradient(s, scalars.clip_range, samples, value, batch, surrogate, by_value);
    const float value_share = (float)s->value_coef * share, by_entropy = (float)-s->entropy_coef * share;
    for (int b = 0; b < samples; b++) by_value[b] *= value_share;
    for (int b = 0; b < samples; b++)
        for (size_t at = (size_t)b * size; at < (size_t)(b + 1) * size; at++) {
            by_output[at] = by_log_prob[b] * found.log_prob_by_output[at];
            if (s->network->components && by_entropy != 0) by_output[at] += by_entropy * found.entropy_by_output[at];
        }
    if (!s->network->components) {
        float *squares = found.entropy_by_output;
        for (int b = 0; b < samples; b++)
            for (int k = 0; k < size; k++) {
                const float scaled = found.log_prob_by_output[(size_t)b * size + k] * deviation[k];
                squares[(size_t)b * size + k] = scaled * scaled - 1;
            }
        row_times_matrix(&s->matmul, by_log_prob, squares, samples, size, by_log_std);
        for (int k = 0; k < size; k++) by_log_std[k] += by_entropy * (float)samples;
    }
    const double total = policy_loss + s->value_coef * value_loss - s->entropy_coef * entropy;
    const double sums[] = {total / s->batch_size, policy_loss, value_loss, entropy, divergence, outside};
    memset(statistics, 0, STATISTICS * sizeof(double));
    memcpy(statistics, sums, sizeof(sums));
}
