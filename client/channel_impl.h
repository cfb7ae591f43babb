/*
 * A channel and its items as their files share them: channel.c opens and closes
 * channels, item.c sends and receives, channel_buffer.c has checks and buffers,
 * channel_people.c tells which processes have left or died, channel_lag.c which
 * are too slow, channel_surplus.c lets buffers leave, and channel_fd.c
 * makes the descriptor for event loops.
 */
#pragma once
#include "client/client.h"
#include "shm/slots.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MS_NS INT64_C(1000000)

enum item_use { ITEM_FREE, ITEM_BEGUN, ITEM_RECEIVED };

struct fsdp_item {
	struct fsdp_channel *channel;
	_Atomic int use; /* enum item_use */
	struct slots_hold hold;
	uint8_t *data;            /* of the buffer */
	uint64_t used;            /* bytes of it */
	struct fsdp_tensor *kept; /* the buffer, which has left the channel */
	struct slots_head head;   /* private and checked */
	struct fsdp_item *next;   /* of all, or of those that are free */
	struct fsdp_item *next_free;
};

/* A buffer as this process has it. The thread that has the slot uses it; the
 * slot's word orders one thread after another. */
struct buffer {
	struct slot_ref ref;
	/* Owned; NULL: not asked for. With the lock, a thread that has not the
	 * slot takes one that has left the channel. */
	struct fsdp_tensor *_Atomic tensor;
	uint8_t *data;
};

struct watch;

struct fsdp_channel {
	struct fsdp_client *client;
	uint64_t id;
	uint32_t place;
	enum fsdp_channel_role role;
	bool is_writable;
	struct slots slots;
	struct slots_seen seen;
	uint32_t lag_ms;       /* 0: nobody is cut */
	uint64_t first_number; /* the newest item when it was opened */
	/* With a limit of lag: its calls have waited for a buffer since then,
	 * or since the broker was asked; 0: they do not. */
	_Atomic int64_t waits_since_ns;
	_Atomic uint32_t n_died; /* producers of whose death we have told */
	_Atomic uint32_t n_begun;
	_Atomic bool is_ended;
	/* Those that it has asked for are below this, a hint. */
	_Atomic uint32_t n_buffers;
	/* Of the lists and buffers, and for making the watch. */
	pthread_mutex_t lock;
	struct watch *_Atomic watch; /* owned; NULL: nobody asked for it */
	struct fsdp_item *items, *free_items;
	struct buffer buffers[SLOTS_MAX];
	struct fsdp_channel *next;
	char name[FSDP_MAX_NAME + 1];
};

int channel_check(const struct fsdp_channel *channel, struct error *err);
int channel_check_role(const struct fsdp_channel *channel,
		       enum fsdp_channel_role role, struct error *err);

/* Is the buffer that we know still the channel's? */
bool channel_has_buffer(const struct fsdp_channel *channel, uint32_t at);
/* The address of a buffer, whose slot the caller has in its hands. */
int channel_find_buffer(struct fsdp_channel *channel, uint32_t at,
			uint8_t **ret, struct error *err);
/* The buffer leaves the channel, with the item that the caller holds in it. */
int channel_take_out(struct fsdp_channel *channel, uint32_t at,
		     struct fsdp_tensor **ret, struct error *err);

/* How many producers have died; whether all producers have gone. */
uint32_t channel_n_died(const struct fsdp_channel *channel);
bool channel_has_ended(const struct fsdp_channel *channel);
/* Is there something to tell other than an item or a free buffer: to a consumer
 * an end or a death, to a producer that all consumers have gone? `data` is the
 * channel. */
bool channel_has_news(const void *data);

/* With a limit of lag. A call waits: returns when it has to call
 * channel_report_lag(), or `until_ns` if that is earlier. */
int64_t channel_lag_ends(struct fsdp_channel *channel, int64_t until_ns);
/* It has waited; the broker is asked if that was too long. */
void channel_report_lag(struct fsdp_channel *channel);
/* It has got a buffer. */
void channel_end_wait(struct fsdp_channel *channel);
/* Has the broker cut this consumer? */
bool channel_is_cut(const struct fsdp_channel *channel);
int channel_refuse_cut(const struct fsdp_channel *channel, struct error *err);
/* What is sent from now on is for this consumer. */
void channel_note_order(struct fsdp_channel *channel);

/* The caller has freed a slot; if that is to leave, the broker is told. */
void channel_report_free(struct fsdp_channel *channel, uint32_t at);
/* Drop the buffers that have left since the channel has fewer slots. */
void channel_forget_surplus(struct fsdp_channel *channel);

/* A call has found nothing: the descriptor becomes readable when there is
 * something. Does nothing without a descriptor. */
void channel_watch_arm(struct fsdp_channel *channel);
/* Close the descriptor. A forked child has no thread to stop. */
void channel_watch_free(struct fsdp_channel *channel, bool is_forked);
