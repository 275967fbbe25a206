/* All optimizer steps of an update, by processes that need nobody to lead them.
 *
 * A step has four stages, each a round of items that are claimed (`claims.h`): the lanes' gradients; their sum, by ranges of parameters; Adam,
 * by the same ranges, into scratch; the scratch copied back. Whoever finds all items of a stage done opens the next. The items of a stage write
 * nothing that another item of the stage reads, and nothing that their own redoing would read: so whatever a dead process left half-done is
 * done again by another, and no step is taken twice. Whether a step is taken follows from numbers that stay as they are until the stage is over;
 * each range finds that out for itself. */
#include "claims.h"
#include "flat.h"
#include "lane.h"
#include <immintrin.h>
#include <math.h>
#include <string.h>

enum { LANES, SUM, ADAM, COPY, STAGES };
enum { GO, STOPPED, NOT_FINITE }; /* verdicts on a step */
enum { BLOCK = 16384, TIMES = 3, DEPTH = 32 };
static const double LEAST_WATCH = 2e-6, MOST_WATCH = 1e-4, TURN = 0.05; /* seconds: of `watch`; of working before it looks up */

/* One process's view; everything it points to but `lane`, `slab` and `lane_sizes` is shared. */
typedef struct {
    word *header; /* the number of the present round; rounds are never counted back, from update to update */
    uint32_t *bell;
    word *claims;                     /* [items] */
    const float *lane_gradients;      /* [lanes][parameters] */
    double *lane_statistics;          /* [lanes][STATISTICS] */
    float *gradient;                  /* [parameters] */
    double *squares;                  /* [blocks] */
    float *now[3], *next[3];          /* parameters, first and second moment; and their scratch */
    const double *scalars, *rates;    /* [steps][num_scalars]; [steps][2] of Adam: rate and correction */
    double *results;                  /* [steps][STATISTICS + 2]: sums, norm, verdict */
    double *times;                    /* [steps][lanes + 3 ranges][TIMES]: begun, ended, by whom */
    const int64_t *rows;              /* [epochs][slices][samples]: which of the slab's, in turn */
    const lane_settings *lane;        /* NULL: the caller computes lanes */
    const lane_slab *slab;
    const int64_t *lane_sizes;        /* [lanes of a slice] */
    int64_t parameters, num_scalars, steps, lanes, ranges, lanes_of_slice, slices, samples, minibatches, slice_samples;
    double max_norm, target_kl, batch_size, beta1, beta2, epsilon;
    int64_t has_target;
    int64_t holder, holders, asks;    /* `asks`: every item is handed to the caller, who may watch */
    word first, round;                /* of this update; of what was claimed last */
    int64_t packed_step;              /* whose weights are laid out; -1: none */
    double watch;                     /* seconds that it waits awake */
} steps;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static word end_of(const steps *s) { return s->first + (word)(STAGES * s->steps); }
static int stage_of(const steps *s, word round) { return (int)((round - s->first) % STAGES); }
static int64_t step_of(const steps *s, word round) { return (int64_t)((round - s->first) / STAGES); }
static int items_of(const steps *s, word round) { return (int)(stage_of(s, round) == LANES ? s->lanes : s->ranges); }
static double *result_of(const steps *s, int64_t step) { return s->results + step * (STATISTICS + 2); }

static double *time_of(const steps *s, word round, int item) {
    const int stage = stage_of(s, round);
    const int64_t place = (stage == LANES ? 0 : s->lanes + (stage - SUM) * s->ranges) + item;
    return s->times + (step_of(s, round) * (s->lanes + 3 * s->ranges) + place) * TIMES;
}

/* --- the stages ------------------------------------------------------------------------------------------------------------------------- */

static void lane_stage(steps *s, int64_t step, int lane) {
    const int64_t epoch = step / s->minibatches, minibatch = step % s->minibatches, slice = lane / s->lanes_of_slice, number = lane % s->lanes_of_slice;
    int64_t at = (epoch * s->slices + slice) * s->samples + minibatch * s->slice_samples;
    for (int64_t before = 0; before < number; before++) at += s->lane_sizes[before];
    if (s->packed_step != step) lane_pack(s->lane);
    s->packed_step = step;
    lane_gradient(s->lane, s->slab, s->rows + at, (int)s->lane_sizes[number], s->scalars + step * s->num_scalars,
                  (float *)s->lane_gradients + (int64_t)lane * s->parameters, s->lane_statistics + lane * STATISTICS);
}

static int64_t blocks_of(const steps *s) { return (s->parameters + BLOCK - 1) / BLOCK; }

/* Where a range begins: whole blocks, as even as possible. */
static int64_t begin_of(const steps *s, int range) {
    const int64_t at = range * blocks_of(s) / s->ranges * BLOCK;
    return at < s->parameters ? at : s->parameters;
}

static void sum_stage(const steps *s, int range) {
    for (int64_t at = begin_of(s, range); at < begin_of(s, range + 1); at += BLOCK) {
        const int64_t count = s->parameters - at < BLOCK ? s->parameters - at : BLOCK;
        s->squares[at / BLOCK] = flat_tree_sum(s->lane_gradients + at, s->parameters, (int)s->lanes, count, s->gradient + at);
    }
}

/* As `minibatches.tree_sum` of the lanes' statistics. */
static void sum_statistics(const steps *s, double *sums) {
    double waiting[DEPTH][STATISTICS];
    int depth = 0;
    for (int64_t lane = 0; lane < s->lanes; lane++) {
        memcpy(waiting[depth++], s->lane_statistics + lane * STATISTICS, sizeof(waiting[0]));
        const int partners = lane + 1 == s->lanes ? depth - 1 : __builtin_ctz(~(unsigned)lane);
        for (int merged = 0; merged < partners; merged++, depth--)
            for (int k = 0; k < STATISTICS; k++) waiting[depth - 2][k] += waiting[depth - 1][k];
    }
    memcpy(sums, waiting[0], sizeof(waiting[0]));
}

/* As `minibatches.plain_sum`. */
static double sum_squares(const steps *s) {
    double total = 0;
    for (int64_t block = 0; block < blocks_of(s); block++) total += s->squares[block];
    return total;
}

/* What becomes of a step, into its row of results. */
static void judge(const steps *s, double *result) {
    sum_statistics(s, result);
    const double squares = sum_squares(s), norm = squares >= 0 ? sqrt(squares) : NAN;
    bool finite = isfinite(norm);
    for (int k = 0; k < STATISTICS; k++) finite = finite && isfinite(result[k]);
    result[STATISTICS] = norm;
    if (s->has_target && !(result[4] / s->batch_size <= s->target_kl)) result[STATISTICS + 1] = STOPPED;
    else result[STATISTICS + 1] = finite ? GO : NOT_FINITE;
}

static void adam_stage(const steps *s, int64_t step, int range) {
    double found[STATISTICS + 2];
    judge(s, found);
    if (range == 0) memcpy(result_of(s, step), found, sizeof(found));
    if (found[STATISTICS + 1] != GO) return;
    const int64_t at = begin_of(s, range), count = begin_of(s, range + 1) - at;
    const double wanted = s->max_norm / (found[STATISTICS] + 1e-6), *rates = s->rates + 2 * step;
    const float *const from[] = {s->now[0] + at, s->now[1] + at, s->now[2] + at};
    float *const into[] = {s->next[0] + at, s->next[1] + at, s->next[2] + at};
    flat_adam_into(from, into, s->gradient + at, count, wanted < 1 ? wanted : 1, (adam_numbers){s->beta1, s->beta2, rates[0], rates[1], s->epsilon});
}

static void copy_stage(const steps *s, int range) {
    const int64_t at = begin_of(s, range), count = begin_of(s, range + 1) - at;
    for (int k = 0; k < 3; k++) memcpy(s->now[k] + at, s->next[k] + at, count * sizeof(float));
}

void steps_perform(steps *s, int item) {
    const int64_t step = step_of(s, s->round);
    switch (stage_of(s, s->round)) {
        case LANES: lane_stage(s, step, item); break;
        case SUM: sum_stage(s, item); break;
        case ADAM: adam_stage(s, step, item); break;
        default: copy_stage(s, item);
    }
}

/* --- the rounds ------------------------------------------------------------------------------------------------------------------------- */

/* Opens what comes after a round that is done; others may be faster. Of a single item nobody is told: who opened it goes on with it, and
 * should it die, the coordinator rings. */
static void advance(const steps *s, word round) {
    const bool is_last = stage_of(s, round) == ADAM && result_of(s, step_of(s, round))[STATISTICS + 1] != GO;
    const word next = is_last ? end_of(s) : round + 1;
    if (replace(s->header, round, next) && (next == end_of(s) || items_of(s, next) > 1)) ring(s->bell);
}

/* The item that was claimed last is done. */
void steps_finish(steps *s, int item) {
    double *times = time_of(s, s->round, item);
    times[1] = seconds();
    times[2] = (double)s->holder;
    mark_done(s->claims + item);
    if (all_done(s->claims, s->round, items_of(s, s->round))) advance(s, s->round);
}

/* To be woken takes longer than a small lane. So it waits awake at first: longer when that was worth it, shorter when it was not, down to
 * next to nothing where lanes are long or others need the core. */
static void wait_for(steps *s, uint32_t heard, int milliseconds) {
    const double until = seconds() + s->watch;
    do {
        for (int k = 0; k < 8; k++) _mm_pause();
        if (__atomic_load_n(s->bell, __ATOMIC_SEQ_CST) != heard) {
            s->watch = 2 * s->watch < MOST_WATCH ? 2 * s->watch : MOST_WATCH;
            return;
        }
    } while (seconds() < until);
    s->watch = s->watch / 2 > LEAST_WATCH ? s->watch / 2 : LEAST_WATCH;
    sleep_on(s->bell, heard, milliseconds);
}

/* Works until the update is over (OVER), for a while (NOTHING: call it again), or up to an item that the caller has to perform and finish. */
int steps_take_part(steps *s, int milliseconds) {
    const double until = seconds() + TURN;
    do {
        const uint32_t heard = __atomic_load_n(s->bell, __ATOMIC_SEQ_CST);
        const word round = load(s->header);
        if (round < s->first || round >= end_of(s)) return OVER;
        const int item = claim(s->claims, round, items_of(s, round), (int)s->holder, (int)s->holders);
        if (item >= 0) {
            s->round = round;
            time_of(s, round, item)[0] = seconds();
            if (s->asks || (stage_of(s, round) == LANES && s->lane == NULL)) return item;
            steps_perform(s, item);
            steps_finish(s, item);
        } else if (all_done(s->claims, round, items_of(s, round))) advance(s, round);
        else wait_for(s, heard, milliseconds);
    } while (seconds() < until);
    return NOTHING;
}

void steps_open(steps *s) {
    __atomic_store_n(s->header, s->first, __ATOMIC_SEQ_CST);
    ring(s->bell);
}

/* As `free_claims`, in whatever round they are. The present one cannot end while the dead one's item is not done. */
void steps_free(steps *s, int holder) {
    const word round = load(s->header);
    if (round >= s->first && round < end_of(s)) free_claims(s->bell, s->claims, round, items_of(s, round), holder);
}
