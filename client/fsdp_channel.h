/*
 * Channels: streams of items from producers to consumers, for loading data.
 * Included by fsdp.h.
 *
 * A *channel* has a name and some buffers in the broker's memory, which are
 * used again and again. A producer takes a free buffer, writes arrays into it
 * in place, and sends it; a consumer reads the arrays in place and gives the
 * buffer back, which is the producer's credit for another item. Nothing is
 * copied, and the broker takes no part: sending and receiving make no system
 * call unless somebody sleeps. The broker opens and ends channels, and frees
 * what a process had in its hands when it died.
 *
 *     producer                              consumer
 *     fsdp_channel_open(.., PRODUCER, ..)   fsdp_channel_open(.., CONSUMER, ..)
 *     fsdp_item_begin(ch, -1, &item)
 *     fsdp_item_part(item, &spec, &data)
 *     memcpy(data, ...)
 *     fsdp_item_send(item)                  fsdp_item_receive(ch, -1, &item)
 *                                           fsdp_item_view(item, 0, &view)
 *                                           fsdp_item_release(item)
 *     fsdp_channel_end(ch)                  fsdp_item_receive(): -ENODATA
 *
 * Several processes may send, and several may receive. In a channel of mode
 * FSDP_CHANNEL_SHARE each item goes to one consumer; with
 * FSDP_CHANNEL_BROADCAST it goes to every consumer that has the channel open
 * when the item is sent. Items of one producer are received in the order in
 * which they were sent.
 *
 * What happens when a process dies, by kill -9 at any instruction:
 *   - A producer: what it had sent is received; then each consumer is told once
 *     (-EOWNERDEAD, with the process), and goes on if there are other
 * producers. The item that it was writing is lost.
 *   - A consumer: what it had received and not released is lost, and its
 *     buffers become free. If it was the last one, producers are told (-EPIPE).
 *   - The broker: nothing, if it is restarted under systemd or by fsdpd
 *     --supervised. Sending and receiving go on meanwhile.
 *
 * A channel is closed by fsdp_channel_close() or fsdp_close(), and ends with
 * the last process that has it open; items that nobody has received then are
 * lost.
 *
 * All functions may be called from any thread, also several at a time on one
 * channel. A forked child cannot use the channels of its parent (-ECHILD). A
 * call that waits returns -EINTR as fsdp_connect_options.interrupted says.
 */
#pragma once
#ifndef FSDP_API
#include "fsdp.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_CHANNEL_SLOTS 64   /* buffers of a channel at most */
#define FSDP_ITEM_PARTS    16   /* arrays of an item at most */
#define FSDP_ITEM_ALIGN    64   /* of each array in the buffer, bytes */
#define FSDP_ITEM_TEXT     1024 /* of fsdp_item_fail(), with the final 0 */

struct fsdp_channel; /* one role of this process in a channel */
struct fsdp_item;    /* an item that is written, or has been received */

enum fsdp_channel_role { FSDP_PRODUCER = 1, FSDP_CONSUMER = 2 };

enum fsdp_channel_mode {
	FSDP_CHANNEL_SHARE = 0,    /* an item goes to one of the consumers */
	FSDP_CHANNEL_BROADCAST = 1 /* an item goes to all of them */
};

struct fsdp_channel_options {
	size_t struct_size;
	/* Permissions, as of tensors. Producers need to write, consumers to
	 * read. */
	struct fsdp_access access;
	/* Bytes of an item with all its arrays, each rounded up to
	 * FSDP_ITEM_ALIGN. 0: do not make the channel but wait until it
	 * exists; `n_slots`, `mode`, `lag_ms` and `access` are then
	 * ignored. */
	uint64_t capacity;
	uint32_t n_slots; /* buffers, 1 to FSDP_CHANNEL_SLOTS; 0: 8 */
	uint32_t mode;    /* enum fsdp_channel_mode */
	/* How long to wait for memory, or for the channel to exist. */
	int32_t timeout_ms;
	/* A consumer of FSDP_CHANNEL_SHARE: it changes what it has received in
	 * place (fsdp_item_view.data_mut), and so needs to write. */
	bool changes_items;
	/* Of FSDP_CHANNEL_BROADCAST: a consumer that has kept the oldest item
	 * for so long, while a producer waited so long for a buffer, is cut
	 * (-EOVERFLOW). 0: producers wait for the slowest consumer. */
	uint32_t lag_ms;
};

/*
 * Opens a channel in one role; a process may open it several times. The first
 * that names a capacity makes the channel; the options of others must be the
 * same (-EINVAL). `name` is a name as of tensors, but the names of channels are
 * apart from those. -ENOENT, -ETIMEDOUT: with a capacity of 0, it does not
 * exist (in time). -ENOMEM, -EDQUOT: as fsdp_alloc(), for all buffers at once.
 * -EACCES: not permitted, or the channel belongs to a user whom the caller does
 * not trust (only its own user, root, and the owner of the name's first
 * component are). -EPERM: the name's first component belongs to another user.
 * -EUSERS: 64 have it open already. -ENFILE: the node has too many channels.
 */
FSDP_API int fsdp_channel_open(struct fsdp_client *client, const char *name,
			       const struct fsdp_channel_options *options,
			       enum fsdp_channel_role role,
			       struct fsdp_channel **ret);

/*
 * Closes it: ends a producer, cancels items that it has not sent, and releases
 * items that a consumer has received. Frees `channel`, which may be NULL, and
 * all its items. No other call on the channel may be running.
 */
FSDP_API int fsdp_channel_close(struct fsdp_channel *channel);

/*
 * Says that this producer sends nothing more. When all producers have ended or
 * closed, and all items have been received, consumers get -ENODATA. Items that
 * this producer has begun are still to be sent or cancelled before.
 */
FSDP_API int fsdp_channel_end(struct fsdp_channel *channel);

/*
 * Gives the channel `n_slots` buffers, 1 to FSDP_CHANNEL_SLOTS. Each process
 * that has the channel open and may write its memory may call this, also while
 * items are sent and received. If there are to be more buffers, the call waits
 * up to `timeout_ms` for the memory of all of them. If there are to be fewer,
 * the surplus ones take no new items, and leave when they are free; what was
 * sent in them is received, in order. The memory of a buffer that has left
 * is free when each process that used it has called fsdp_item_begin() or
 * fsdp_item_receive() again, or waits in it.
 * -EDQUOT, -ENOMEM: the number stays as it was; the user who made the channel
 * is charged. It does not wait for buffers that can never fit. -EACCES: not
 * permitted. -EOPNOTSUPP: a process whose library is older than this function
 * has the channel open. -ENOSYS: the broker is older than this function. A
 * channel that was resized can be opened with any `n_slots` in the options.
 */
FSDP_API int fsdp_channel_resize(struct fsdp_channel *channel, uint32_t n_slots,
				 int32_t timeout_ms);

/*
 * Returns a descriptor for poll(), epoll and event loops. It is readable while
 * the channel may have something for the caller: for a consumer an item, the
 * end, an error or a death; for a producer a free buffer, or the end of all
 * consumers. Call fsdp_item_receive() or fsdp_item_begin() with a timeout_ms of
 * 0 then; the descriptor stays readable until such a call returns -ETIMEDOUT.
 * It may be readable although nothing is there. It is always the same, belongs
 * to the channel and is closed with it; do not read or close it. The first call
 * starts a thread, which sleeps by the channel for this process. -EMFILE,
 * -EAGAIN: the limit of descriptors or of threads is reached.
 */
FSDP_API int fsdp_channel_fd(struct fsdp_channel *channel);

struct fsdp_channel_info {
	size_t struct_size;
	uint64_t capacity;
	uint32_t n_slots, mode;
	uint32_t n_queued;    /* items sent and not yet received */
	uint32_t n_producers; /* that have not ended */
	uint32_t n_consumers;
};
FSDP_API int fsdp_channel_info(const struct fsdp_channel *channel,
			       struct fsdp_channel_info *ret) FSDP_SIZED(2);

/* A process that has a channel open, and the channel. */
struct fsdp_channel_entry {
	size_t struct_size;
	const char *name;
	uint32_t uid; /* made the channel, and is charged for its buffers */
	uint32_t mode;
	uint64_t capacity;
	uint32_t n_slots;
	uint32_t n_queued;   /* items that nobody has received yet */
	uint32_t pid;        /* of the process */
	const char *command; /* its name */
	enum fsdp_channel_role role;
	/* A producer that sends nothing more; a consumer that was cut. */
	bool is_ended;
	uint64_t n_items; /* that it has sent or received */
	uint64_t n_waits; /* how often it had to wait */
	uint64_t age_ms;  /* since it opened the channel */
	bool is_waiting;  /* a consumer for an item, a producer for a free
			   * buffer */
	uint64_t wait_ms; /* since when, if it is */
};
typedef int fsdp_channel_fn(const struct fsdp_channel_entry *entry, void *data);

/* Lists the users of all channels that the caller may read; administrators see
 * all. `entry` is borrowed and valid during the call of `fn`; a nonzero return
 * value of `fn` ends the list and is returned. The counts are what the
 * processes say themselves. */
FSDP_API int fsdp_channels(struct fsdp_client *client, fsdp_channel_fn *fn,
			   void *data);

/* --- sending ------------------------------------------------------------- */

/*
 * Begins an item in a free buffer; waits up to `timeout_ms` for one. The item
 * is the caller's until it is sent or cancelled; several may be begun at a
 * time. -ETIMEDOUT. -EPIPE: there were consumers, and all have gone or were
 * cut. -ENODATA: this producer has ended.
 */
FSDP_API int fsdp_item_begin(struct fsdp_channel *channel, int32_t timeout_ms,
			     struct fsdp_item **ret);

/*
 * Adds an array to the item, behind the arrays before it. `*ret` is its
 * address, where the caller writes it; the contents are undefined until then.
 * -ERANGE: the capacity is used up. -E2BIG: the item has FSDP_ITEM_PARTS
 * arrays.
 */
FSDP_API int fsdp_item_part(struct fsdp_item *item,
			    const struct fsdp_spec *spec, void **ret);

/* Sends the item, which the caller may no longer use. An item without arrays is
 * fine. Never waits. */
FSDP_API int fsdp_item_send(struct fsdp_item *item);

/* Gives the buffer back without sending. `item` may be NULL. */
FSDP_API void fsdp_item_cancel(struct fsdp_item *item);

/*
 * Sends an error in place of an item: who receives it gets -EREMOTEIO and
 * fsdp_error() returns `text`. It needs a free buffer, as fsdp_item_begin().
 * -E2BIG: the text has FSDP_ITEM_TEXT bytes or more.
 */
FSDP_API int fsdp_item_fail(struct fsdp_channel *channel, int32_t timeout_ms,
			    const char *text);

/* --- receiving ----------------------------------------------------------- */

/*
 * Receives the oldest item; waits up to `timeout_ms` for one. Several may be
 * received before they are released.
 * -ETIMEDOUT. -ENODATA: all producers have ended, and all items are received
 * (producers that open the channel later may send more). -EREMOTEIO: a producer
 * sent an error, which fsdp_error() returns. -EOWNERDEAD: a producer has died;
 * told once for each death, after the items that were there then. -EBADMSG: a
 * producer wrote a malformed item, which is dropped. -EOVERFLOW: this consumer
 * was cut (fsdp_channel_options.lag_ms); it gets nothing more, but what it has
 * received stays valid until it is released.
 */
FSDP_API int fsdp_item_receive(struct fsdp_channel *channel, int32_t timeout_ms,
			       struct fsdp_item **ret);

/* An array of a received item. */
struct fsdp_item_view {
	size_t struct_size;
	enum fsdp_dtype dtype;
	uint32_t n_dims;
	int64_t shape[FSDP_MAX_DIMS]; /* row-major, contiguous */
	uint64_t size;                /* bytes */
	const void *data;             /* valid until the item is released */
	/* The same address, for a consumer that has asked for it
	 * (changes_items), while the item is its alone; else NULL. */
	void *data_mut;
};

/* Returns how many arrays the item has; 0 if `item` is no received item. */
FSDP_API uint32_t fsdp_item_n_parts(const struct fsdp_item *item);
FSDP_API int fsdp_item_view(const struct fsdp_item *item, uint32_t i,
			    struct fsdp_item_view *ret) FSDP_SIZED(3);

/* Gives the buffer back, and with it the credit. Never waits. */
FSDP_API int fsdp_item_release(struct fsdp_item *item);

/*
 * Keeps an array of a received item as an ordinary tensor, without a copy: an
 * anonymous tensor that the caller holds and may publish. The item's buffer
 * leaves the channel, which gets a new one as soon as there is memory; so the
 * call asks the broker. The item stays to be released, and others of its arrays
 * may be kept, too. -EOPNOTSUPP: others may still read the item
 * (FSDP_CHANNEL_BROADCAST).
 */
FSDP_API int fsdp_item_keep(struct fsdp_item *item, uint32_t i,
			    struct fsdp_tensor **ret);

#ifdef __cplusplus
}
#endif
