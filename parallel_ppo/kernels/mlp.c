/* Two MLPs of the same shape, one for the action and one for the value, with tanh or ReLU between their layers and a linear head on each: forward,
 * backward, and the choice of an action. On a few rows, a call costs more than its arithmetic: everything that a step needs is one call.
 *
 * Rows of a product are samples or inputs and lanes are outputs, so every sum goes over its terms one after the other, whatever the width of a
 * vector. */
#include "api.h"
#include "heads.h"

/* Of the hidden layers: derivatives go no further down than to them. */
INLINE int widest(const mlp *m) {
    int most = 0;
    for (int l = 1; l <= m->layers; l++) most = m->sizes[l] > most ? m->sizes[l] : most;
    return most;
}

static size_t largest_weight(const mlp *m) {
    size_t most = 0;
    for (int l = 0; l < m->layers; l++) {
        const size_t count = (size_t)m->sizes[l] * m->sizes[l + 1];
        most = count > most ? count : most;
    }
    return most;
}

static size_t weights_of(const mlp *m) {
    size_t count = 0;
    for (int l = 0; l < m->layers; l++) count += (size_t)m->sizes[l] * m->sizes[l + 1];
    return count;
}

static size_t units_of(const mlp *m) {
    size_t count = 0;
    for (int l = 1; l <= m->layers; l++) count += m->sizes[l];
    return count;
}

size_t mlp_packed_floats(const mlp *m) { return 2 * weights_of(m); }

/* The outputs of every hidden layer, and behind them what the backward pass works with: two derivatives and a weight's. */
size_t mlp_space_floats(const mlp *m, int samples) {
    return (2 * units_of(m) + 2 * (size_t)widest(m)) * samples + largest_weight(m);
}

/* --- forward --------------------------------------------------------------------------------------------------------------------------- */

/* One network's weights as [input][output]. */
static void pack(const mlp *m, const_pointers parameters, float *packed) {
    for (int l = 0; l < m->layers; l++) {
        const int inputs = m->sizes[l], units = m->sizes[l + 1];
        transpose(parameters[2 * l], units, inputs, inputs, packed, units);
        packed += (size_t)inputs * units;
    }
}

void mlp_pack(const mlp *m) {
    pack(m, m->parameters, m->packed);
    pack(m, m->parameters + 2 * m->layers, m->packed + weights_of(m));
}

/* One network's hidden layers; returns the last, [samples][units]. */
static const float *hidden(const mlp *m, const_pointers parameters, const float *packed, const float *x, int samples, float *space) {
    for (int l = 0; l < m->layers; l++) {
        const int inputs = m->sizes[l], units = m->sizes[l + 1];
        matrix_product(samples, units, inputs, x, inputs, 1, packed, units, parameters[2 * l + 1], 0, space, units);
        for (size_t i = 0; i < (size_t)samples * units; i += VL) {
            const vec z = v_load(space + i);
            v_store(space + i, m->relu ? v_relu(z) : v_tanh(z));
        }
        x = space;
        packed += (size_t)inputs * units;
        space += (size_t)samples * units;
    }
    return x;
}

void mlp_forward(const mlp *m, const float *x, int samples, float *space, float *action, float *value) {
    const const_pointers heads = m->parameters + 4 * m->layers;
    const int units = m->sizes[m->layers];
    const float *features = hidden(m, m->parameters, m->packed, x, samples, space);
    head_forward(features, samples, units, m->outputs, heads[0], heads[1], action);
    features = hidden(m, m->parameters + 2 * m->layers, m->packed + weights_of(m), x, samples, space + units_of(m) * samples);
    head_forward(features, samples, units, m->values, heads[2], heads[3], value);
}

/* As `heads.act` behind `mlp_forward`. */
void mlp_act(const mlp *m, const float *x, int samples, float *space, float *outputs, const float *draws, float *action, float *log_prob,
             float *value) {
    float deviation[m->log_std ? m->outputs : 1];
    mlp_forward(m, x, samples, space, outputs, value);
    if (m->log_std) each_exp(m->log_std, m->outputs, deviation);
    for (int b = 0; b < samples; b++) {
        float *z = outputs + (size_t)b * m->outputs;
        log_prob[b] = 0;
        for (int c = 0, start = 0; c < m->components; start += m->choices[c], c++)
            action[b * m->components + c] = choose(z + start, m->choices[c], draws[b * m->components + c], &log_prob[b]);
        for (int k = 0; m->components == 0 && k < m->outputs; k++) {
            const float draw = draws[b * m->outputs + k];
            action[b * m->outputs + k] = z[k] + deviation[k] * draw;
            log_prob[b] += -0.5f * (draw * draw) - m->log_std[k] - 0.91893853320467274178f; /* log(2 pi) / 2 */
        }
    }
}

/* --- backward -------------------------------------------------------------------------------------------------------------------------- */

static void add_up(const float *g, int samples, int count, float *sums) {
    memset(sums, 0, count * sizeof(float));
    for (int b = 0; b < samples; b++)
        for (int k = 0; k < count; k++) sums[k] += g[(size_t)b * count + k];
}

/* One network's hidden layers, from the derivative `slope` [samples][units] of the last; `before` and `weight_slope` are scratch. */
static void hidden_backward(const mlp *m, const_pointers parameters, const float *x, int samples, const float *out, float *slope, float *before,
                            float *weight_slope, pointers gradients) {
    for (int l = m->layers - 1; l >= 0; l--) {
        const int inputs = m->sizes[l], units = m->sizes[l + 1];
        for (size_t i = 0; i < (size_t)samples * units; i += VL) {
            const vec h = v_load(out + i), d = v_load(slope + i);
            v_store(slope + i, m->relu ? v_where_positive(h, d) : v_fnma(v_mul(d, h), h, d));
        }
        const float *in = l ? out - (size_t)inputs * samples : x;
        matrix_product(inputs, units, samples, in, 1, inputs, slope, units, NULL, 0, weight_slope, units);
        transpose(weight_slope, inputs, units, units, gradients[2 * l], inputs);
        add_up(slope, samples, units, gradients[2 * l + 1]);
        if (l) {
            matrix_product(samples, inputs, units, slope, units, 1, parameters[2 * l], inputs, NULL, 0, before, inputs);
            float *swap = slope;
            slope = before, before = swap;
        }
        out = in;
    }
}

/* One network, from its head's derivative g [samples][outputs]. */
static void one_backward(const mlp *m, const_pointers parameters, const float *head_weight, int outputs, const float *x, int samples,
                         const float *activations, float *scratch, const float *g, pointers gradients, float *head_gradient,
                         float *head_bias_gradient) {
    const int last = m->sizes[m->layers], most = widest(m);
    float *slope = scratch, *before = scratch + (size_t)most * samples, *weight_slope = before + (size_t)most * samples;
    const float *out = activations + (units_of(m) - last) * samples;
    head_gradients(out, samples, last, outputs, g, head_gradient, head_bias_gradient);
    matrix_product(samples, last, outputs, g, outputs, 1, head_weight, last, NULL, 0, slope, last);
    hidden_backward(m, parameters, x, samples, out, slope, before, weight_slope, gradients);
}

void mlp_backward(const mlp *m, const float *x, int samples, float *space, const float *by_action, const float *by_value,
                  pointers gradients) {
    const const_pointers heads = m->parameters + 4 * m->layers;
    const pointers into = gradients + 4 * m->layers;
    const size_t kept = units_of(m) * samples;
    float *scratch = space + 2 * kept;
    one_backward(m, m->parameters, heads[0], m->outputs, x, samples, space, scratch, by_action, gradients, into[0], into[1]);
    one_backward(m, m->parameters + 2 * m->layers, heads[2], m->values, x, samples, space + kept, scratch, by_value,
                 gradients + 2 * m->layers, into[2], into[3]);
}

/* --- hidden layers alone --------------------------------------------------------------------------------------------------------------- */

void layers_pack(const mlp *m) { pack(m, m->parameters, m->packed); }

void layers_forward(const mlp *m, const float *x, int samples, float *space, float *features) {
    const float *last = hidden(m, m->parameters, m->packed, x, samples, space);
    memcpy(features, last, (size_t)m->sizes[m->layers] * samples * sizeof(float));
}

void layers_backward(const mlp *m, const float *x, int samples, float *space, const float *by_features, pointers gradients) {
    const int last = m->sizes[m->layers];
    float *slope = space + units_of(m) * samples, *before = slope + (size_t)widest(m) * samples;
    memcpy(slope, by_features, (size_t)last * samples * sizeof(float));
    hidden_backward(m, m->parameters, x, samples, space + (units_of(m) - last) * samples, slope, before, before + (size_t)widest(m) * samples,
                    gradients);
}
