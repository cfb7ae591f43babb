/*
 * The limbo collector finds slots whose last use has ended, and updates their
 * states.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct store;
struct holdings;

/* Sets the functions of the deadlines in store.limbo. */
void collect_init(struct store *store);

/* Updates the states of slots whose bits are set in this session's file, up to
 * a limit. Returns true if there are more: call it again from the loop. */
bool collect_pending(struct store *store, struct holdings *holdings);

/*
 * Updates the states of all slots that sessions have released, also before the
 * clients have rung, and of those that devices have finished with. Returns the
 * number of slots freed. It is called before memory is refused, and before
 * shards are fed into a collective. Slots in limbo without a bit are held, and
 * are not visited. Commits: call it before a request changes anything.
 */
uint32_t collect_released(struct store *store);

/* Updates the state of every slot in limbo. Returns the number of slots freed.
 * Commits. */
uint32_t collect_all(struct store *store);
