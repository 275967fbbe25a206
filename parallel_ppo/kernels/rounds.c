/* Rounds of work, opened one by one by the coordinator.
 *
 * The header holds the number of the present round and how many items it has; 0 items: nothing more will come. As long as one of a round's
 * items is not done, that round is the present one: so whoever has claimed an item may read what the round is about. */
#include "claims.h"

static int items_of(word header) { return (int)(header & (((word)1 << ITEM_BITS) - 1)); }

void rounds_open(word *header, uint32_t *bell, word round, int items) {
    __atomic_store_n(header, round << ITEM_BITS | (word)items, __ATOMIC_SEQ_CST);
    ring(bell);
}

/* Claims an item, waiting for one if need be; NOTHING after `milliseconds`, OVER when no more will come. */
int rounds_next(const word *header, uint32_t *bell, word *words, int holder, int holders, int milliseconds) {
    for (int attempt = 0; attempt < 2; attempt++) {
        const uint32_t heard = __atomic_load_n(bell, __ATOMIC_SEQ_CST);
        const word now = load(header);
        if (items_of(now) == 0) return OVER;
        const int item = claim(words, now >> ITEM_BITS, items_of(now), holder, holders);
        if (item >= 0) return item;
        if (attempt == 0) sleep_on(bell, heard, milliseconds);
    }
    return NOTHING;
}

bool rounds_is_done(const word *words, word round, int items) { return all_done(words, round, items); }

/* Marks an item that this holder has claimed in the present round; true for whoever sees that it was the last. */
bool rounds_finish(const word *header, word *words, int item) {
    const word now = load(header);
    mark_done(words + item);
    return all_done(words, now >> ITEM_BITS, items_of(now));
}

void rounds_free(uint32_t *bell, word *words, word round, int items, int holder) { free_claims(bell, words, round, items, holder); }
