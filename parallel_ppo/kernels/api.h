/* Everything that Python shares with the kernels: constants, structures and functions.
 *
 * `api.py` reads this file, so it keeps to enumerations, structures of plain members, names for types, and prototypes. Arrays are C-contiguous;
 * [K] behind a member says how many it points to. B is `samples`. */
#ifndef PARALLEL_PPO_API_H
#define PARALLEL_PPO_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parameters or gradients, each in torch's layout. */
typedef float *const *pointers;
typedef const float *const *const_pointers;

/* --- arrays (arrays.c) ------------------------------------------------------------------------------------------------------------------- */

void array_exp(const float *in, size_t count, float *out);
void array_log(const float *in, size_t count, float *out);
void array_tanh(const float *in, size_t count, float *out);
void array_softplus(const float *in, size_t count, float *out);
void array_wide_exp(const double *in, size_t count, double *out);
void array_wide_log(const double *in, size_t count, double *out);

/* in [rows][columns]. Term i of a row goes to sum i % 16, and the sixteen are added in turn; columns are added row by row. */
void array_row_sums(const float *in, size_t rows, size_t columns, float *out);
void array_column_sums(const float *in, size_t rows, size_t columns, float *out);
void array_wide_row_sums(const double *in, size_t rows, size_t columns, double *out);
void array_wide_column_sums(const double *in, size_t rows, size_t columns, double *out);

/* Uniform draws in [0, 1), multiples of 2^-53, become normal ones. */
void array_normals(const double *uniform, size_t count, double *out);

/* Makes vectors [count][length] orthonormal, in place and in their order. The length is a multiple of 8. */
void array_orthonormal(double *vectors, size_t count, size_t length);

/* --- flat vectors (flat.c) -------------------------------------------------------------------------------------------------------------- */

/* out = the sum of `microbatches` vectors that are `stride` floats apart; returns the sum of its squares. `count` is a multiple of 16. */
double flat_tree_sum(const float *vectors, size_t stride, int microbatches, size_t count, float *out);

/* In place; `count` is a multiple of 16. */
void flat_adam(float *parameters, const float *gradient, float *first, float *second, size_t count, double scale, double beta1,
               double beta2, double rate, double correction, double epsilon);

/* In place, without momentum; `count` is a multiple of 16. With `inside`, epsilon is added before the root is taken. */
void flat_rmsprop(float *parameters, const float *gradient, float *second, size_t count, double scale, double alpha, double rate,
                  double epsilon, int inside);

/* Rows of `count` bytes, each less its mean, times its scale, in `levels` of a byte around 127.5, clamped. */
void flat_whiten(const uint8_t *pixels, size_t rows, size_t count, const float *mean, const float *scale, float levels, uint8_t *out);

/* Sums of rows of `count` bytes, and of their squares, [count] each: exact, so in any order. */
void flat_byte_sums(const uint8_t *pixels, size_t rows, size_t count, double *sums, double *squares);

/* --- trunks for images (trunk.c) -------------------------------------------------------------------------------------------------------- */

enum { NATURE, IMPALA, IMPOOLA, SMALL_IMAGE };

typedef struct {
    int kind, height, width, channels;
    int factor; /* IMPALA and IMPOOLA: times 16, 32 and 32 channels */
} network_shape;

size_t trunk_packed_floats(const network_shape *shape);
size_t trunk_saved_floats(const network_shape *shape, int samples, int keep);
size_t trunk_scratch_floats(const network_shape *shape, int samples);

/* `scratch` is zero before. */
void trunk_prepare_scratch(const network_shape *shape, float *scratch, int samples);

/* First all weights for the forward pass, then (with `backward`) those that the backward pass reads. */
void trunk_pack(const network_shape *shape, const_pointers parameters, int backward, float *packed, float *scratch);

/* With `keep`, `place` keeps what the backward pass needs of every image. */
void trunk_forward(const network_shape *shape, const uint8_t *pixels, int samples, const_pointers parameters, const float *packed, int keep,
                   float *place, float *scratch, float *features);

/* Overwrites the gradients, after a forward pass with `keep` on the same place. */
void trunk_backward(const network_shape *shape, const uint8_t *pixels, int samples, const_pointers parameters, const float *packed,
                    float *place, float *scratch, const float *features, const float *dfeatures, pointers gradients);

/* One layer alone over all samples, as it runs inside the network; for the benchmark, after a whole forward and backward pass on the same
 * place. Not for SMALL_IMAGE. */
void trunk_layer(const network_shape *shape, int layer, int backward, const uint8_t *pixels, int samples, const_pointers parameters,
                 const float *packed, float *place, float *scratch, float *features, pointers gradients);

/* --- heads and linear layers (heads.c, linear.c) ---------------------------------------------------------------------------------------- */

/* Read in place by every call. Features are a multiple of 16. */
typedef struct {
    int features, outputs, values; /* K logits or means; V values */
    const float *action_weight, *action_bias, *value_weight, *value_bias;
} heads;

/* features [B][features] -> action [B][K], values [B][V] */
void heads_forward(const heads *network, const float *features, int samples, float *action, float *values);

/* Overwrites the gradients of weight and bias of the action's head and of the value's, and the derivative in the features. */
void heads_backward(const heads *network, const float *features, int samples, const float *by_action, const float *by_values,
                    pointers gradients, float *by_features);

/* The choice of categorical actions; draws and action [B][components]. `logits` [B][K] is scratch. */
void heads_act(const heads *network, const float *features, int samples, int components, const int32_t *sizes, const float *draws,
               float *logits, float *action, float *log_prob, float *values);

/* One linear layer, sizes being multiples of 64, with or without a ReLU behind it: x [B][inputs] -> out [B][outputs]. */
size_t linear_layer_scratch_floats(int inputs, int outputs, int samples);
void linear_layer_forward(int inputs, int outputs, const float *x, int samples, const float *w, const float *bias, int relu, float *scratch,
                          float *out);
void linear_layer_backward(int inputs, int outputs, const float *x, int samples, const float *w, const float *out, const float *dout, int relu,
                           float *scratch, float *dw, float *db, float *dx);

/* --- two MLPs of the same shape, for the action and for the value (mlp.c) ---------------------------------------------------------------- */

/* Read in place by every call. The parameters: weight and bias of each layer, of the action's network and then of the value's; weight and
 * bias of the action's head; of the value's. Hidden units are multiples of 16. */
typedef struct {
    int layers, outputs, values; /* K logits or means; V values */
    int components;              /* categorical choices; 0: a Gaussian, or outputs that Python reads */
    int relu;                    /* between the layers, instead of tanh */
    const int32_t *sizes;        /* [layers + 1] inputs and each layer's units */
    const int32_t *choices;      /* [components] */
    const_pointers parameters;
    const float *log_std; /* [K] of a Gaussian */
    float *packed;
} mlp;

size_t mlp_packed_floats(const mlp *network);
size_t mlp_space_floats(const mlp *network, int samples);

/* After every change of the parameters. */
void mlp_pack(const mlp *network);

/* x [B][inputs] -> action [B][K], value [B][V]; `space` keeps what the backward pass needs. */
void mlp_forward(const mlp *network, const float *x, int samples, float *space, float *action, float *value);

/* draws and action [B][components or K]; `outputs` [B][K] is scratch. */
void mlp_act(const mlp *network, const float *x, int samples, float *space, float *outputs, const float *draws, float *action,
             float *log_prob, float *value);

/* Overwrites every gradient; `space` is that of `mlp_forward` of the same x. */
void mlp_backward(const mlp *network, const float *x, int samples, float *space, const float *by_action, const float *by_value,
                  pointers gradients);

/* One MLP's hidden layers alone: `outputs` and `values` are 0, and `parameters` are those of one network. As above, with the last layer's
 * outputs [B][units] as features. */
void layers_pack(const mlp *network);
void layers_forward(const mlp *network, const float *x, int samples, float *space, float *features);
void layers_backward(const mlp *network, const float *x, int samples, float *space, const float *by_features, pointers gradients);

/* --- a recurrent cell (cell.c) ----------------------------------------------------------------------------------------------------------- */

enum { GRU, LSTM };

/* One layer of torch's nn.GRU or nn.LSTM: weights [G * units][inputs] and [G * units][units], two biases [G * units], of G gates. The weights are
 * read by `cell_pack`, and the first also by `cell_backward`. A state has 1 or 2 times `units` floats: h, then c. */
typedef struct {
    int kind, inputs, units;
    const_pointers weights;
    float *packed;
} recurrent_cell;

size_t cell_packed_floats(const recurrent_cell *cell);

/* With `keep`, also what the backward pass needs. Zero before first use. */
size_t cell_space_floats(const recurrent_cell *cell, int steps, int samples, int keep);

/* After every change of the weights. */
void cell_pack(const recurrent_cell *cell);

/* x [steps][B][inputs], state [B][state] -> out [steps][B][units], final [B][state]. Where a start [steps][B] is set, the state is zero before the
 * step. A sample depends on no other, and a step on no later one. */
void cell_forward(const recurrent_cell *cell, const float *x, const float *state, const uint8_t *starts, int steps, int samples, int keep, float *space,
                  float *out, float *final);

/* Overwrites the gradients of the weights and dx [steps][B][inputs], after one forward pass with `keep` in the same space. */
void cell_backward(const recurrent_cell *cell, const float *x, const uint8_t *starts, int steps, int samples, float *space, const float *dout,
                   pointers gradients, float *dx);

/* --- the gradient of a microbatch of PPO with MLPs (microbatch.c, ppo.c) ----------------------------------------------------------------------------- */

enum { STATISTICS = 11 }; /* fields of `Statistics`; those after the first six belong to others and stay 0 */

/* Of one process. Offsets are floats from the start of a flat vector. */
typedef struct {
    const mlp *network; /* with one value */
    double value_coef, entropy_coef, batch_size;
    int64_t clips_value;
    int64_t num_offsets, log_std_offset; /* the last is -1 without one */
    const int64_t *offsets;              /* of each parameter, in the order of the network */
    float *scratch;
    int64_t normalizes;
    const float *observation_mean, *observation_scale;
    double observation_clip;
} microbatch_settings;

/* One rollout's columns, [T * E][...]. */
typedef struct {
    const float *observation, *action, *log_prob, *value, *advantage, *target_return;
} rollout_columns;

/* Floats of scratch for the largest microbatch. */
size_t microbatch_scratch_floats(const microbatch_settings *settings, int samples);

/* Overwrites the microbatch's gradient, a flat vector (what lies between the parameters is left alone), and its statistics. `scalars` are those of
 * `ppo.Scalars`; `rows` are the samples' places in the rollout. */
void microbatch_gradient(const microbatch_settings *settings, const rollout_columns *rollout, const int64_t *rows, int samples, const double *scalars,
                   float *gradient, double *statistics);

/* --- all optimizer steps of an update (steps.c) ------------------------------------------------------------------------------------------ */

enum { MICROBATCHES, SUM, EXCHANGE, OPTIMIZER, COPY, STAGES };
enum { GO, STOPPED, NOT_FINITE }; /* verdicts on a step */
enum { NORM = STATISTICS, PREDICTOR_NORM, RATE, VERDICT, RESULTS }; /* what follows the sums in a row of results */
enum { TIMES = 3 };
enum { ITEM_BITS = 24, NOTHING = -1, OVER = -2, AGAIN = -3, EXCHANGE_OPENED = -4 }; /* items, and what is returned instead of one */

typedef uint64_t word; /* of an item: round << 24 | holder << 1 | done */

/* A part of the flat vector: the policy, then curiosity's predictors (empty without them). Each has a norm and a learning rate. */
typedef struct {
    const float *gradients; /* [microbatches][end - first] */
    int64_t first, end;     /* in the flat vector; `first` is a multiple of BLOCK */
    int64_t per_slice;      /* microbatches of a slice that have a gradient of this part */
    double learning_rate;   /* at the start of the update */
    double max_norm;
} gradient_part;

/* One process's view; everything it points to but `microbatch`, `rollout` and `microbatch_sizes` is shared. */
typedef struct {
    word *header; /* the number of the present round, which only grows, from update to update */
    uint32_t *futex;
    word *claims;                     /* [items] */
    gradient_part parts[2];
    double *microbatch_statistics;          /* [microbatches][STATISTICS] */
    float *gradient;                  /* [parameters] */
    double *squares;                  /* [blocks] */
    float *now[3], *next[3];          /* parameters, first and second moment; and their scratch */
    const double *scalars, *rates;    /* [steps][num_scalars]; [steps][2] of Adam: what divides the rate, and what multiplies the root */
    double *results;                  /* [steps][RESULTS] */
    double *times;                    /* [steps][microbatches + 3 ranges][TIMES]: began, ended, holder */
    const int64_t *rows;              /* [epochs][slices][samples]: rows of the rollout in the order of use */
    const microbatch_settings *microbatch;        /* only if C performs MICROBATCHES */
    const rollout_columns *rollout;
    const int64_t *microbatch_sizes;        /* [microbatches of a slice] */
    int64_t parameters, num_scalars, steps, first_microbatch, microbatches, all_microbatches, ranges;
    int64_t slices, samples, minibatches, slice_samples;
    double target_kl, batch_size, beta1, beta2, epsilon;
    double adaptive_kl, adaptive_factor, adaptive_min, adaptive_max; /* of the rule in rate_of */
    int64_t adapts, has_target;
    int64_t has_exchange, python_stages; /* several nodes; a bit for each stage that the caller performs */
    int64_t holder, holders;
    word first, round;                /* of this update; of the item that was claimed last */
    int64_t packed_step;              /* whose weights are laid out; -1: none */
    double spin_seconds;              /* that it waits awake */
    int64_t opened_exchange;          /* the coordinator has to be woken */
} steps;

void steps_open(steps *s);

/* Works until the update is over (OVER), for a while (NOTHING: call it again), or up to an item that the caller has to perform and finish. */
int steps_take_part(steps *s, int milliseconds);
void steps_perform(steps *s, int item);
void steps_finish(steps *s, int item);
bool steps_judge(const steps *s, int range, double *result);
bool steps_awaits_exchange(const steps *s);
void steps_exchanged(steps *s);

/* Lets others claim what a process, confirmed dead, held. */
void steps_free(steps *s, int holder);

#endif
