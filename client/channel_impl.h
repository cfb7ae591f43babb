/*
 * The structs of channels and items, and the functions that only these files
 * call: channel.c opens and closes channels, item.c sends and receives,
 * channel_buffer.c has checks and buffers, channel_people.c tells which
 * processes have left or died, channel_lag.c which are too slow,
 * channel_surplus.c removes surplus buffers, and channel_fd.c makes the
 * descriptor for event loops.
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
	struct buffer *buffer;  /* it is a user of this buffer; or NULL */
	uint64_t used;          /* bytes of the buffer that its arrays use */
	bool is_kept;           /* by fsdp_item_keep() */
	struct slots_head head; /* private copy, which was checked */
	struct fsdp_item *next; /* in the channel's `items` */
	struct fsdp_item *next_free;
};

/* A buffer as this process knows it. Its users are the list of the channel's
 * buffers and each item in it. So its memory stays while this process reads or
 * writes an item, although other processes may write that the slot is free, and
 * take the buffer out of the channel. */
struct buffer {
	struct slot_ref ref;
	struct fsdp_tensor *tensor; /* owned */
	uint8_t *data;
	uint32_t n_users; /* protected by the channel's lock */
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
	uint32_t lag_ms; /* 0: consumers are never cut */
	bool known_only; /* a call that does not wait asks the broker nothing */
	/* number of the newest item at the time of opening */
	uint64_t first_number;
	/* With lag_ms: since when calls of this process wait for a buffer, or
	 * when they last asked the broker to cut consumers; 0: they have not
	 * waited since one got a buffer. */
	_Atomic int64_t waits_since_ns;
	_Atomic int64_t waited_ns;  /* when a wait last ended */
	_Atomic uint32_t n_waiting; /* waits that go on */
	/* deaths of producers that were reported to the caller */
	_Atomic uint32_t n_died;
	_Atomic uint32_t n_begun;
	_Atomic bool is_ended;
	/* The index of every requested buffer is below this number. Only a
	 * hint. */
	_Atomic uint32_t n_buffers;
	/* Protects the lists, `buffers` and the creation of `watch`. */
	pthread_mutex_t lock;
	/* owned; NULL: fsdp_channel_fd() was not called */
	struct watch *_Atomic watch;
	struct fsdp_item *items, *free_items;
	struct buffer *buffers[SLOTS_MAX]; /* NULL: not requested yet */
	struct fsdp_channel *next;
	char name[FSDP_MAX_NAME + 1];
};

int channel_check(const struct fsdp_channel *channel, struct error *err);
int channel_check_role(const struct fsdp_channel *channel,
		       enum fsdp_channel_role role, struct error *err);
/* Send a request whose failure does not matter. Returns 0, or -EINTR if it was
 * interrupted. */
int channel_notify(struct fsdp_channel *channel, const struct request *request,
		   struct error *err);

/* Tell whether the tensor that this process knows is still a buffer of the
 * channel. */
bool channel_has_buffer(const struct fsdp_channel *channel,
			const struct buffer *buffer);
/* Find a buffer whose slot the caller has claimed. The caller is then one of
 * its users. -EAGAIN: only the broker knows it, and a call with this time-out
 * must not ask. */
int channel_find_buffer(struct fsdp_channel *channel, uint32_t at,
			int32_t timeout_ms, struct buffer **ret,
			struct error *err);
/* Take the buffer of a received item out of the channel. */
int channel_take_out(const struct fsdp_item *item, struct error *err);
/* Remove one user. Called with the lock, or by the thread that frees the
 * channel. If it was the last one, this returns the tensor, which the caller
 * frees without the lock, or else NULL. `buffer` may be NULL. */
struct fsdp_tensor *buffer_end_use(struct buffer *buffer);

/* The number of producers that have died; and whether there were producers and
 * all of them have ended or left. */
uint32_t channel_n_died(const struct fsdp_channel *channel);
bool channel_has_ended(const struct fsdp_channel *channel);
/* Tell whether a call has to return something other than an item or a free
 * buffer: to a consumer an end, a death or a cut, to a producer that all
 * consumers have left. `data` is the channel. */
bool channel_has_news(const void *data);
/* Ask the broker to look whether the process of this user is ending, as a wait
 * has found (`ending` of struct slots_wait). It does nothing for LIVENESS_NONE,
 * or if the broker is away. Returns as channel_notify(). */
int channel_report_ending(struct fsdp_channel *channel, uint32_t place,
			  struct error *err);

/* These five do nothing in a channel without lag_ms. The first two begin and
 * end the wait of a call, or of a descriptor, for a buffer. */
void channel_begin_wait(struct fsdp_channel *channel);
void channel_end_wait(struct fsdp_channel *channel);
/* Call this before each sleep: it returns when channel_report_lag() has to be
 * called, or `until_ns` if that is earlier. */
int64_t channel_lag_ends(struct fsdp_channel *channel, int64_t until_ns);
/* The call has waited: if it was longer than lag_ms, ask the broker to cut
 * consumers. Returns as channel_notify(). */
int channel_report_lag(struct fsdp_channel *channel, struct error *err);
/* The call has got a buffer. */
void channel_reset_lag(struct fsdp_channel *channel);
/* Tell whether the broker has cut this consumer. */
bool channel_is_cut(const struct fsdp_channel *channel);
int channel_refuse_cut(const struct fsdp_channel *channel, struct error *err);
/* Note the number of the newest item: items with higher numbers are sent to
 * this consumer. */
void channel_note_order(struct fsdp_channel *channel);

/* Call this after freeing a slot: if the channel is to have fewer slots and
 * this is a surplus one, it notifies the broker. */
void channel_report_free(struct fsdp_channel *channel, uint32_t at);
/* Drop the buffers that have left the channel since its number of slots was
 * reduced. */
void channel_forget_surplus(struct fsdp_channel *channel);

/* Call this when a call has found neither an item nor a buffer: the descriptor,
 * if there is one, becomes readable when there is one. */
void channel_watch_arm(struct fsdp_channel *channel);
/* Close the descriptor and stop its thread, which a forked child does not
 * have. */
void channel_watch_free(struct fsdp_channel *channel, bool is_forked);
