/* Two MLPs of the same shape, one for the action and one for the value, with tanh between their layers and a linear head on each: forward,
 * backward, and the choice of an action. On a few rows, a call costs more than its arithmetic: everything that a step needs is one call.
 *
 * `sizes` are the inputs and the hidden units of each layer (`layers` + 1 numbers; hidden units are multiples of 16, the inputs need not be).
 * Parameters and gradients are torch's, in this order: weight and bias of each layer, of the action's network and then of the value's; weight
 * and bias of the action's head; of the value's. Rows of a product are samples or inputs and lanes are outputs, so every sum goes over its terms
 * one after the other, whatever the width of a vector.
 */
#include "heads.h"
#include "mlp.h"

typedef struct {
    int layers;
    const int *sizes;
} shape;

/* Of the hidden layers: derivatives go no further down than to them. */
INLINE int widest(shape s) {
    int most = 0;
    for (int l = 1; l <= s.layers; l++) most = s.sizes[l] > most ? s.sizes[l] : most;
    return most;
}

static size_t largest_weight(shape s) {
    size_t most = 0;
    for (int l = 0; l < s.layers; l++) {
        const size_t count = (size_t)s.sizes[l] * s.sizes[l + 1];
        most = count > most ? count : most;
    }
    return most;
}

static size_t weights_of(shape s) {
    size_t count = 0;
    for (int l = 0; l < s.layers; l++) count += (size_t)s.sizes[l] * s.sizes[l + 1];
    return count;
}

static size_t units_of(shape s) {
    size_t count = 0;
    for (int l = 1; l <= s.layers; l++) count += s.sizes[l];
    return count;
}

size_t mlp_packed_floats(int layers, const int *sizes) { return 2 * weights_of((shape){layers, sizes}); }

/* The outputs of every hidden layer, and behind them what `backward` needs of its own: two derivatives and a weight's. */
size_t mlp_space_floats(int layers, const int *sizes, int samples) {
    const shape s = {layers, sizes};
    return (2 * units_of(s) + 2 * (size_t)widest(s)) * samples + largest_weight(s);
}

/* --- arithmetic ------------------------------------------------------------------------------------------------------------------------ */

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

/* out[R][V vectors] = start + sum over `terms` of a[r a_row + t a_term] b[t b_term + vector] */
INLINE void tile(int R, int V, int terms, const float *a, size_t a_row, size_t a_term, const float *b, size_t b_term, const float *start,
                 float *out, size_t out_row) {
    vec sum[4][4];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int i = 0; i < V; i++) sum[r][i] = start ? v_load(start + i * VL) : v_zero();
    for (int t = 0; t < terms; t++) {
        vec x[4];
        UNROLL for (int i = 0; i < V; i++) x[i] = v_load(b + t * b_term + i * VL);
        UNROLL for (int r = 0; r < R; r++) {
            const vec w = v_set(a[r * a_row + t * a_term]);
            UNROLL for (int i = 0; i < V; i++) sum[r][i] = v_fma(w, x[i], sum[r][i]);
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int i = 0; i < V; i++) v_store(out + r * out_row + i * VL, sum[r][i]);
}

/* The same for any number of rows and any multiple of 16 lanes; `start` has a number for each lane, or is NULL. */
static void product(int rows, int lanes, int terms, const float *a, size_t a_row, size_t a_term, const float *b, size_t b_term,
                    const float *start, float *out, size_t out_row) {
    enum { WIDE = VL == 16 ? 4 : 2 };
    for (int l = 0; l < lanes;) {
        const int is_wide = l + WIDE * VL <= lanes;
        const float *from = start ? start + l : NULL;
        for (int r = 0; r < rows;) {
            const float *row = a + r * a_row;
            float *to = out + r * out_row + l;
            const int many = r + 4 <= rows;
            if (is_wide && many) tile(4, WIDE, terms, row, a_row, a_term, b + l, b_term, from, to, out_row);
            else if (is_wide) tile(1, WIDE, terms, row, a_row, a_term, b + l, b_term, from, to, out_row);
            else if (many) tile(4, 16 / VL, terms, row, a_row, a_term, b + l, b_term, from, to, out_row);
            else tile(1, 16 / VL, terms, row, a_row, a_term, b + l, b_term, from, to, out_row);
            r += many ? 4 : 1;
        }
        l += is_wide ? WIDE * VL : 16;
    }
}

static void transpose(const float *in, int rows, int columns, float *out) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) out[(size_t)c * rows + r] = in[(size_t)r * columns + c];
}

/* --- forward --------------------------------------------------------------------------------------------------------------------------- */

/* Weights as [input][output]: once after every change of the parameters. */
void mlp_pack(int layers, const int *sizes, const_pointers parameters, float *packed) {
    for (int network = 0; network < 2; network++)
        for (int l = 0; l < layers; l++) {
            transpose(parameters[2 * (network * layers + l)], sizes[l + 1], sizes[l], packed);
            packed += (size_t)sizes[l] * sizes[l + 1];
        }
}

/* One network's hidden layers; returns the last, [samples][units]. */
static const float *hidden(shape s, const_pointers parameters, const float *packed, const float *x, int samples, float *space) {
    for (int l = 0; l < s.layers; l++) {
        const int inputs = s.sizes[l], units = s.sizes[l + 1];
        product(samples, units, inputs, x, inputs, 1, packed, units, parameters[2 * l + 1], space, units);
        for (size_t i = 0; i < (size_t)samples * units; i += VL) v_store(space + i, v_tanh(v_load(space + i)));
        x = space;
        packed += (size_t)inputs * units;
        space += (size_t)samples * units;
    }
    return x;
}

static void head(const float *features, int samples, int units, int outputs, const float *weight, const float *bias, float *out) {
    for (int b = 0; b < samples; b++)
        for (int k = 0; k < outputs; k++)
            out[(size_t)b * outputs + k] = dot(features + (size_t)b * units, weight + (size_t)k * units, units) + bias[k];
}

/* x [samples][inputs] -> action [samples][outputs], value [samples][values] */
void mlp_forward(int layers, const int *sizes, int outputs, int values, const_pointers parameters, const float *packed, const float *x,
                 int samples, float *space, float *action, float *value) {
    const shape s = {layers, sizes};
    const const_pointers heads = parameters + 4 * layers;
    const float *features = hidden(s, parameters, packed, x, samples, space);
    head(features, samples, sizes[layers], outputs, heads[0], heads[1], action);
    features = hidden(s, parameters + 2 * layers, packed + weights_of(s), x, samples, space + units_of(s) * samples);
    head(features, samples, sizes[layers], values, heads[2], heads[3], value);
}

/* As `heads.act` behind `mlp_forward`: components > 0 choices of these sizes, or (0) a Gaussian with `log_std`. `outputs_space` is scratch. */
void mlp_act(int layers, const int *sizes, int outputs, int values, const_pointers parameters, const float *packed, const float *x,
             int samples, float *space, float *outputs_space, int components, const int *choices, const float *log_std, const float *draws, float *action,
             float *log_prob, float *value) {
    mlp_forward(layers, sizes, outputs, values, parameters, packed, x, samples, space, outputs_space, value);
    for (int b = 0; b < samples; b++) {
        const float *z = outputs_space + (size_t)b * outputs;
        log_prob[b] = 0;
        for (int c = 0, start = 0; c < components; start += choices[c], c++)
            action[b * components + c] = choose(z + start, choices[c], draws[b * components + c], &log_prob[b]);
        for (int k = 0; components == 0 && k < outputs; k++) {
            const float draw = draws[b * outputs + k];
            action[b * outputs + k] = z[k] + expf(log_std[k]) * draw;
            log_prob[b] += -0.5f * (draw * draw) - log_std[k] - 0.91893853320467274178f; /* log(2 pi) / 2 */
        }
    }
}

/* --- backward -------------------------------------------------------------------------------------------------------------------------- */

static void add_up(const float *g, int samples, int count, float *sums) {
    memset(sums, 0, count * sizeof(float));
    for (int b = 0; b < samples; b++)
        for (int k = 0; k < count; k++) sums[k] += g[(size_t)b * count + k];
}

/* One network, from its head's derivative g [samples][outputs]. */
static void one_backward(shape s, const_pointers parameters, const float *head_weight, int outputs, const float *x, int samples,
                         const float *activations, float *scratch, const float *g, pointers gradients, float *head_gradient,
                         float *head_bias_gradient) {
    const int last = s.sizes[s.layers], most = widest(s);
    float *slope = scratch, *before = scratch + (size_t)most * samples, *weight_slope = before + (size_t)most * samples;
    const float *out = activations + (units_of(s) - last) * samples;
    product(outputs, last, samples, g, 1, outputs, out, last, NULL, head_gradient, last);
    add_up(g, samples, outputs, head_bias_gradient);
    product(samples, last, outputs, g, outputs, 1, head_weight, last, NULL, slope, last);
    for (int l = s.layers - 1; l >= 0; l--) {
        const int inputs = s.sizes[l], units = s.sizes[l + 1];
        for (size_t i = 0; i < (size_t)samples * units; i += VL) {
            const vec h = v_load(out + i), d = v_load(slope + i);
            v_store(slope + i, v_fnma(v_mul(d, h), h, d));
        }
        const float *in = l ? out - (size_t)inputs * samples : x;
        product(inputs, units, samples, in, 1, inputs, slope, units, NULL, weight_slope, units);
        transpose(weight_slope, inputs, units, gradients[2 * l]);
        add_up(slope, samples, units, gradients[2 * l + 1]);
        if (l) {
            product(samples, inputs, units, slope, units, 1, parameters[2 * l], inputs, NULL, before, inputs);
            float *swap = slope;
            slope = before, before = swap;
        }
        out = in;
    }
}

/* Overwrites every gradient; `space` is that of `mlp_forward` of the same x. */
void mlp_backward(int layers, const int *sizes, int outputs, int values, const_pointers parameters, const float *x, int samples,
                  float *space, const float *by_action, const float *by_value, pointers gradients) {
    const shape s = {layers, sizes};
    const const_pointers heads = parameters + 4 * layers;
    const pointers into = gradients + 4 * layers;
    const size_t kept = units_of(s) * samples;
    float *scratch = space + 2 * kept;
    one_backward(s, parameters, heads[0], outputs, x, samples, space, scratch, by_action, gradients, into[0], into[1]);
    one_backward(s, parameters + 2 * layers, heads[2], values, x, samples, space + kept, scratch, by_value, gradients + 2 * layers, into[2],
                 into[3]);
}
