/*
 * Channels: streams of items from producers to consumers, for loading data.
 * Included by fsdp.h.
 *
 * A *channel* has a name and some buffers in the broker's memory, which are
 * reused. A producer takes a free buffer, writes arrays into it in place, and
 * sends it; a consumer reads the arrays in place and releases the buffer, which
 * is then free for another item. Nothing is copied. A process asks the broker
 * for each buffer when it first uses it; then sending and receiving make no
 * system call unless a process has to sleep or to be woken. The broker opens
 * and ends channels, and frees the buffers of processes that have died.
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
 * A process may die at any instruction, for example by kill -9:
 *   - If a producer dies, the items that it had sent are received. Then a call
 *     of each consumer returns -EOWNERDEAD once, with a message that names the
 *     process; later calls receive items of other producers. The item that the
 *     producer was writing is lost.
 *   - If a consumer dies, the items that it had received and not released are
 *     lost, and their buffers become free. When no consumer is left, calls of
 *     producers return -EPIPE.
 *   - If the broker dies, sending and receiving go on. Only the first use of a
 *     buffer by a process waits for the broker, up to reconnect_ms, whatever
 *     the time-out, unless known_only is set and the time-out is 0
 *     (-ECONNREFUSED: the broker is still away; the item or buffer stays in the
 *     channel). A broker that is restarted under systemd or fsdpd --supervised
 *     takes the channel over.
 *
 * fsdp_channel_close() and fsdp_close() close a channel. It ends with the last
 * process that has it open; items that were not received by then are lost.
 *
 * All functions may be called from any thread, and several threads may use one
 * channel at a time. A forked child cannot use the channels of its parent
 * (-ECHILD). A wait ends with -EINTR if fsdp_connect_options.interrupted
 * returns nonzero.
 */
#pragma once
#ifndef FSDP_API
#include "fsdp.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_CHANNEL_SLOTS 64   /* maximum number of buffers of a channel */
#define FSDP_ITEM_PARTS    16   /* maximum number of arrays of an item */
#define FSDP_ITEM_ALIGN    64   /* alignment of each array, in bytes */
#define FSDP_ITEM_TEXT     1024 /* bytes of an error, with the final 0 */

struct fsdp_channel; /* a channel that this process has opened in one role */
struct fsdp_item;    /* an item that is being written, or was received */

enum fsdp_channel_role { FSDP_PRODUCER = 1, FSDP_CONSUMER = 2 };

enum fsdp_channel_mode {
	FSDP_CHANNEL_SHARE = 0,    /* an item goes to one of the consumers */
	FSDP_CHANNEL_BROADCAST = 1 /* an item goes to all of them */
};

struct fsdp_channel_options {
	size_t struct_size;
	/* Producers need permission to write, consumers to read. */
	struct fsdp_access access;
	/* The size of a buffer in bytes: the sum of an item's arrays, each
	 * rounded up to a multiple of FSDP_ITEM_ALIGN. 0: do not make the
	 * channel but wait until it exists; `n_slots`, `mode`, `lag_ms` and
	 * `access` are then ignored. */
	uint64_t capacity;
	uint32_t n_slots; /* buffers, 1 to FSDP_CHANNEL_SLOTS; 0: 8 */
	uint32_t mode;    /* enum fsdp_channel_mode */
	/* How long to wait for memory, or for the channel to exist. */
	int32_t timeout_ms;
	/* For a consumer of FSDP_CHANNEL_SHARE: it changes received items in
	 * place (fsdp_item_view.data_mut), which needs permission to write. */
	bool changes_items;
	/* With FSDP_CHANNEL_BROADCAST: when a producer has waited this long for
	 * a buffer, and the oldest item was sent at least this long ago, the
	 * consumers that have not released this item are cut (-EOVERFLOW). 0:
	 * producers wait for the slowest consumer. */
	uint32_t lag_ms;
	/* Calls with a timeout_ms of 0 ask the broker nothing. -EAGAIN from
	 * fsdp_item_begin() or fsdp_item_receive(): the buffer is not known to
	 * this process yet; call again with another time-out. */
	bool known_only;
};

/*
 * Opens a channel in one role; a process may open it several times. The first
 * call with a capacity makes the channel; later calls with a capacity must have
 * the same options (-EINVAL). `name` follows the rules for names of tensors; a
 * channel and a tensor may have the same name. -ENOENT: `capacity` and
 * `timeout_ms` are 0, and the channel does not exist. -ETIMEDOUT: `capacity` is
 * 0, and the channel does not exist after `timeout_ms`. -ENOMEM, -EDQUOT: see
 * fsdp_alloc(); the memory of all buffers is allocated at once. -EACCES: the
 * caller may not read the channel (a producer: write it), or it was made by a
 * user whom the caller does not trust: other than its own user, root, and the
 * owner of the name's first component. -EPERM: the name's first component
 * belongs to another user. -EUSERS: the channel was opened 64 times already.
 * -ENFILE: the node has too many channels.
 */
FSDP_API int fsdp_channel_open(struct fsdp_client *client, const char *name,
			       const struct fsdp_channel_options *options,
			       enum fsdp_channel_role role,
			       struct fsdp_channel **ret);

/*
 * Closes a channel: ends a producer, and cancels the items that it has not
 * sent; releases the items that a consumer has received. Frees `channel`, which
 * may be NULL, and all its items. No other call on the channel may be running.
 */
FSDP_API int fsdp_channel_close(struct fsdp_channel *channel);

/*
 * Declares that this producer sends no more items. When all producers have
 * ended or closed the channel, and all items have been received, calls of
 * consumers return -ENODATA. -EBUSY: this producer has begun items; send or
 * cancel them first.
 */
FSDP_API int fsdp_channel_end(struct fsdp_channel *channel);

/*
 * Changes the number of buffers to `n_slots`, 1 to FSDP_CHANNEL_SLOTS. Each
 * process that has the channel open and may write its memory may call this,
 * also while items are sent and received.
 *
 * If the number grows, the call waits up to `timeout_ms` for the memory of all
 * new buffers, which is charged to the user who made the channel. If it
 * shrinks, the surplus buffers take no new items, and leave the channel when
 * they are free; items that were sent in them are received, in order. The
 * memory of a buffer that has left is free when each process that used it has
 * called fsdp_item_begin() or fsdp_item_receive() again, or waits in one of
 * these. A process that opens the channel later may give the first number of
 * buffers or the present one.
 *
 * -EDQUOT, -ENOMEM: there is too little memory, and the number has not changed;
 * the call does not wait for buffers that can never fit. -EACCES: the caller
 * may not write the channel's memory. -EOPNOTSUPP: a process whose library is
 * older than this function has the channel open. -ENOSYS: the broker is older
 * than this function.
 */
FSDP_API int fsdp_channel_resize(struct fsdp_channel *channel, uint32_t n_slots,
				 int32_t timeout_ms);

/*
 * Returns a descriptor for poll(), epoll and event loops. It is readable while
 * a call by this process may not have to wait: a consumer's if there is an
 * item, or all producers have ended, or one has died; a producer's if a buffer
 * is free, or all consumers have left. Call fsdp_item_receive() or
 * fsdp_item_begin() with a timeout_ms of 0 then; the descriptor stays readable
 * until such a call returns -ETIMEDOUT. It may be readable although the call
 * would have to wait. All calls return the same descriptor, which belongs to
 * the channel and is closed with it; do not read or close it. The first call
 * starts a thread that waits on the channel. -EMFILE, -EAGAIN: the limit of
 * descriptors or of threads is reached.
 */
FSDP_API int fsdp_channel_fd(struct fsdp_channel *channel);

struct fsdp_channel_info {
	size_t struct_size;
	uint64_t capacity;
	uint32_t n_slots, mode;
	uint32_t n_queued;    /* items that were sent and not yet received */
	uint32_t n_producers; /* producers that have not ended */
	uint32_t n_consumers;
};
FSDP_API int fsdp_channel_info(const struct fsdp_channel *channel,
			       struct fsdp_channel_info *ret) FSDP_SIZED(2);

/* A process that has opened a channel in one role, and the channel. */
struct fsdp_channel_entry {
	size_t struct_size;
	const char *name;
	uint32_t uid; /* the user who made the channel and pays for it */
	uint32_t mode;
	uint64_t capacity;
	uint32_t n_slots;
	uint32_t n_queued;   /* items that were sent and not yet received */
	uint32_t pid;        /* of the process */
	const char *command; /* the name of the process */
	enum fsdp_channel_role role;
	/* The producer has ended, or the consumer was cut. */
	bool is_ended;
	uint64_t n_items; /* items that it has sent or received */
	uint64_t n_waits; /* how often it had to wait */
	uint64_t age_ms;  /* since it opened the channel */
	/* It waits: a consumer for an item, a producer for a free buffer. */
	bool is_waiting;
	uint64_t wait_ms; /* how long it has been waiting; 0 if it is not */
};
typedef int fsdp_channel_fn(const struct fsdp_channel_entry *entry, void *data);

/* Lists the users of all channels that the caller may read; administrators see
 * all channels. `entry` is borrowed and valid during the call of `fn`; a
 * nonzero return value of `fn` ends the list and is returned. The processes
 * write the counts themselves, and the broker does not verify them. */
FSDP_API int fsdp_channels(struct fsdp_client *client, fsdp_channel_fn *fn,
			   void *data);

/* --- sending ------------------------------------------------------------- */

/*
 * Begins an item in a free buffer; waits up to `timeout_ms` for one. The caller
 * owns the item until it is sent or cancelled, and may begin several items at a
 * time. -ETIMEDOUT: no buffer has become free, or a broadcast has no consumer
 * yet. -EPIPE: there were consumers, and all of them have left or were cut.
 * -ENODATA: this producer has ended.
 */
FSDP_API int fsdp_item_begin(struct fsdp_channel *channel, int32_t timeout_ms,
			     struct fsdp_item **ret);

/*
 * Appends an array to the item. `*ret` is its address, where the caller writes
 * it; the contents are undefined until then. -ERANGE: the array does not fit
 * into the rest of the capacity. -E2BIG: the item has FSDP_ITEM_PARTS arrays
 * already.
 */
FSDP_API int fsdp_item_part(struct fsdp_item *item,
			    const struct fsdp_spec *spec, void **ret);

/* Sends the item, which the caller may no longer use. It may have no arrays.
 * The call never waits. */
FSDP_API int fsdp_item_send(struct fsdp_item *item);

/* Frees the item and its buffer without sending it. `item` may be NULL. */
FSDP_API void fsdp_item_cancel(struct fsdp_item *item);

/*
 * Sends an error in place of an item: the fsdp_item_receive() that receives it
 * returns -EREMOTEIO, and fsdp_error() then returns the first 511 bytes of
 * `text`, with '?' in place of control characters. The call waits for a free
 * buffer and fails like fsdp_item_begin(). -E2BIG: the text has
 * FSDP_ITEM_TEXT bytes or more.
 */
FSDP_API int fsdp_item_fail(struct fsdp_channel *channel, int32_t timeout_ms,
			    const char *text);

/* --- receiving ----------------------------------------------------------- */

/*
 * Receives the oldest item; waits up to `timeout_ms` for one. Several items may
 * be received before they are released.
 *
 * -ETIMEDOUT: there is no item yet. -ENODATA: all producers have ended, and all
 * items were received (producers that open the channel later may send more).
 * -EREMOTEIO: a producer sent an error, which fsdp_error() returns.
 * -EOWNERDEAD: a producer has died; returned once, after the items that had
 * been sent before. -EBADMSG: a producer wrote a malformed item, which is
 * dropped. -EOVERFLOW: this consumer was cut (fsdp_channel_options.lag_ms) and
 * receives no more items; the items that it holds stay valid until it releases
 * them.
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
	/* The same address, if the consumer opened the channel with
	 * changes_items and no array of the item was kept; else NULL. */
	void *data_mut;
};

/* Returns the number of arrays; 0 if `item` is not a received item. */
FSDP_API uint32_t fsdp_item_n_parts(const struct fsdp_item *item);
/* Describes array `i` (from 0) of a received item. -ERANGE: the item has no
 * such array. */
FSDP_API int fsdp_item_view(const struct fsdp_item *item, uint32_t i,
			    struct fsdp_item_view *ret) FSDP_SIZED(3);

/* Frees the item, and its buffer for the producers. The call never waits. */
FSDP_API int fsdp_item_release(struct fsdp_item *item);

/*
 * Makes array `i` of a received item an ordinary tensor, without a copy: an
 * anonymous tensor that the caller holds and may publish. The call sends a
 * request to the broker, which takes the item's buffer out of the channel and
 * replaces it as soon as there is memory. The caller must still release the
 * item, and may keep other arrays of it, too. -EOPNOTSUPP: the channel is an
 * FSDP_CHANNEL_BROADCAST, so that other consumers may still read the item.
 */
FSDP_API int fsdp_item_keep(struct fsdp_item *item, uint32_t i,
			    struct fsdp_tensor **ret);

#ifdef __cplusplus
}
#endif
