/*
 * The limbo collector: finds slots whose last use has ended, and updates their
 * states.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct store;
struct holdings;

/* Take care of the deadlines of store.limbo. */
void collect_init(struct store *store);

/* Update the states of slots whose bits are set in this session's file, up to a
 * limit. True: there are more, call again from the loop. */
bool collect_pending(struct store *store, struct holdings *holdings);

/*
 * Update the states of all slots that sessions have released, whether they have
 * rung yet or not, and of those that devices have finished with. Returns the
 * number of slots freed. It is called before memory is refused, and before
 * shards are fed into a collective. Slots in limbo without a bit are held, and
 * cost nothing here. Commits: call it before a request changes anything.
 */
uint32_t collect_released(struct store *store);

/* Update the state of every slot in limbo. Returns the number
 * freed. Commits. */
uint32_t collect_all(struct store *store);
