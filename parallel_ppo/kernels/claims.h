/* Work that is claimed and counted in shared memory, without a message for each piece.
 *
 * Each item of a round has a word: the round, its holder, whether it is done. Nothing is counted by increments, so a process that dies leaves no
 * wrong count behind. A word of an earlier round is free. The futex changes whenever there may be something to claim. */
#ifndef PARALLEL_PPO_CLAIMS_H
#define PARALLEL_PPO_CLAIMS_H

#include "api.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline word load(const word *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }

static inline bool replace(word *at, word expected, word wanted) {
    return __atomic_compare_exchange_n(at, &expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static inline word claimed_by(word round, int holder) { return round << ITEM_BITS | (word)holder << 1; }

/* The k-th item that one of `holders` tries: those of its own share first, then backwards from there, the last of the others' first. */
static inline int preferred(int k, int items, int holder, int holders) {
    const int first = (int)((int64_t)holder * items / holders), own = (int)((int64_t)(holder + 1) * items / holders) - first;
    return k < own ? first + k : (first - 1 - (k - own) + items) % items;
}

static inline int claim(word *words, word round, int items, int holder, int holders) {
    for (int k = 0; k < items; k++) {
        const int item = preferred(k, items, holder, holders);
        const word seen = load(words + item);
        if (seen >> ITEM_BITS < round && replace(words + item, seen, claimed_by(round, holder))) return item;
    }
    return NOTHING;
}

static inline bool all_done(const word *words, word round, int items) {
    for (int item = 0; item < items; item++) {
        const word seen = load(words + item);
        if (seen >> ITEM_BITS < round || !(seen & 1)) return false;
    }
    return true;
}

static inline void mark_done(word *at) { __atomic_store_n(at, load(at) | 1, __ATOMIC_SEQ_CST); }

/* Changes the futex; an even value means that no process sleeps. Returns the value before. */
static inline uint32_t change(uint32_t *futex) {
    uint32_t seen = __atomic_load_n(futex, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(futex, &seen, (seen | 1) + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return seen;
}

static inline void wake_sleepers(uint32_t *futex) { syscall(SYS_futex, futex, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

static inline void wake(uint32_t *futex) {
    if (change(futex) & 1) wake_sleepers(futex);
}

/* Also those that a dead process was about to wake: it may have changed the futex already. */
static inline void wake_all(uint32_t *futex) {
    change(futex);
    wake_sleepers(futex);
}

/* Until the futex differs from `seen`, or the time is over. */
static inline void sleep_on(uint32_t *futex, uint32_t seen, int milliseconds) {
    const struct timespec patience = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    uint32_t now = seen;
    if (!(seen & 1) && !__atomic_compare_exchange_n(futex, &now, seen | 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) && now != (seen | 1)) return;
    syscall(SYS_futex, futex, FUTEX_WAIT, seen | 1, &patience, NULL, 0);
}

/* Lets others claim what a holder, confirmed dead, had claimed and not done. Only of this round: a process that was held up since an earlier one
 * must not take up an item that others may finish, and whose place they may use again, before it goes on. */
static inline void free_claims(word *words, word round, int items, int holder) {
    for (int item = 0; item < items; item++)
        if (load(words + item) == claimed_by(round, holder))
            __atomic_store_n(words + item, claimed_by(round - 1, holder), __ATOMIC_SEQ_CST);
}

#endif
