#include "ppo.h"
#include "functions.h"

static const float HALF_LOG_TAU = 0.91893853320467274178f, ENTROPY_OF_ONE = 1.41893853320467274178f; /* log(2 pi) / 2, and 1/2 more */

/* Bounds as float32; a NaN stays. */
static inline float clipped(float a, float least, float most) { return a < least ? least : a > most ? most : a; }

/* In the order of `sum_of`. */
static float sum_of_products(const float *a, const float *b, int count) {
    float parts[16] = {0}, total = 0;
    for (int i = 0; i < count; i++) parts[i % 16] += a[i] * b[i];
    for (int k = 0; k < 16; k++) total += parts[k];
    return total;
}

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
    each_exp(shifted, (size_t)samples * size, probability);
    for (int b = 0; b < samples; b++) total[b] = sum_of(probability + (size_t)b * size, size);
    each_log(total, samples, log_total);
    for (int b = 0; b < samples; b++) {
        float *p = probability + (size_t)b * size, *log_p = shifted + (size_t)b * size;
        const int chosen = (int)action[b * s->network->components + component];
        for (int k = 0; k < size; k++) p[k] /= total[b], log_p[k] -= log_total[b];
        const float entropy = -sum_of_products(p, log_p, size);
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
    for (int k = 0; k < size; k++) inverse[k] = -s->network->log_std[k], terms[k] = s->network->log_std[k] + ENTROPY_OF_ONE;
    each_exp(s->network->log_std, size, deviation);
    each_exp(inverse, size, inverse);
    const float entropy = sum_of(terms, size);
    for (int b = 0; b < samples; b++) {
        for (int k = 0; k < size; k++) {
            const size_t at = (size_t)b * size + k;
            const float scaled = (action[at] - outputs[at]) * inverse[k];
            terms[k] = -0.5f * (scaled * scaled) - (s->network->log_std[k] + HALF_LOG_TAU);
            found.log_prob_by_output[at] = scaled * inverse[k];
        }
        found.log_prob[b] = sum_of(terms, size);
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
    return 0.5 * wide_sum_of(squares, samples);
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
    for (int b = 0; b < samples; b++) log_ratio[b] = found.log_prob[b] - batch.log_prob[b];
    each_exp(log_ratio, samples, ratio);
    int outside = 0;
    for (int b = 0; b < samples; b++) {
        const float advantage = (batch.advantage[b] - mean) * scale;
        const float free = ratio[b] * advantage, bounded = clipped(ratio[b], least, most) * advantage;
        surrogate[b] = free <= bounded || free != free ? free : bounded;
        by_log_prob[b] = (free <= bounded ? free : 0) * -share;
        outside += fabsf(ratio[b] - 1) > within;
        ratio[b] = ratio[b] - 1 - log_ratio[b];
    }
    const double policy_loss = -wide_sum_of(surrogate, samples), entropy = wide_sum_of(found.entropy, samples);
    const double divergence = wide_sum_of(ratio, samples);
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
        memset(by_log_std, 0, size * sizeof(float));
        for (int b = 0; b < samples; b++)
            for (int k = 0; k < size; k++) by_log_std[k] += by_log_prob[b] * squares[(size_t)b * size + k];
        for (int k = 0; k < size; k++) by_log_std[k] += by_entropy * (float)samples;
    }
    const double total = policy_loss + s->value_coef * value_loss - s->entropy_coef * entropy;
    const double sums[] = {total / s->batch_size, policy_loss, value_loss, entropy, divergence, outside};
    memset(statistics, 0, STATISTICS * sizeof(double));
    memcpy(statistics, sums, sizeof(sums));
}
