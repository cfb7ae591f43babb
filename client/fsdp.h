/*
 * libfsdp: publish, find, hold and release tensors through fsdpd, the node's
 * tensor memory broker, without copies.
 *
 * A *tensor* is a typed view of a block of memory that the broker owns. The
 * process that makes it writes in place and publishes it under a name (or
 * hands it on by a ticket); every other process that may read it maps the
 * same memory read-only. The memory lives as long as anything keeps it: a
 * name, a ticket, its writer, or a hold. When a process dies, by whatever
 * means, its holds go with it; when the broker dies and is restarted under
 * systemd or `fsdpd --supervised`, mappings, names and holds stay, and the
 * library reconnects by itself.
 *
 * Conventions
 *   - Functions return 0 or a negative errno. fsdp_error() then gives a
 *     sentence that names the thing, the cause and the way out.
 *   - Shapes and strides count elements; sizes and offsets count bytes; times
 *     are milliseconds (0: do not wait, -1: for ever).
 *   - Outputs are written only on success. Calls on several things do all of
 *     them or none.
 *   - A struct that begins with `struct_size` may grow: see below.
 *   - A NULL or freed handle is refused (-EINVAL) by functions that can fail,
 *     and has no address (fsdp_data()); freeing one again does nothing. The
 *     memory of a freed handle is used for later ones, so that an old pointer
 *     may mean another tensor; after fsdp_close() it means nothing.
 *   - Everything may be called from any thread. The library installs no signal
 *     handler, and starts no thread but those by which fsdp_close() waits for
 *     devices.
 *   - After fork() the child cannot use the connection (-ECHILD) until it
 *     connects itself. Read-only memory stays mapped in the child, and stays
 *     valid while the parent holds it.
 *
 * Structs that may grow
 *   Later releases append fields to structs that begin with `struct_size`, so
 *   that programs and libraries of different releases work together.
 *   - Options and other inputs: 0 stands for the size in the first release,
 *     so that designated initialisers need not mention it. A program that uses
 *     a field marked "since" a later release sets struct_size to the sizeof of
 *     the struct. A library that does not know such a field ignores it while
 *     it is 0, and otherwise refuses the call (-E2BIG).
 *   - Outputs: initialise `struct fsdp_info info = {.struct_size =
 *     sizeof(info)};`, or with {0} for the first release's fields. The library
 *     fills what fits, and stores in struct_size how much it filled.
 *   - What a callback is given is the library's, and its struct_size says how
 *     much of it there is.
 *   - All items of an array have the same struct_size, which is also the
 *     distance from one to the next. -EINVAL: they have not, or a struct_size
 *     is smaller than in the first release.
 *
 * Where the mechanism comes from: counters per process and a limbo of blocks
 * that still have users are PyTorch's (torch/csrc/CudaIPCTypes), moved out of
 * the producer into a broker that can see who is alive.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_API __attribute__((visibility("default")))

/* The compiler warns if the struct of this argument is not initialised. */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#define FSDP_SIZED(argument) __attribute__((access(read_write, argument)))
#else
#define FSDP_SIZED(argument)
#endif

#define FSDP_MAX_DIMS    8
#define FSDP_MAX_NAME    255 /* bytes, without the final 0 */
#define FSDP_MAX_BATCH   256 /* items in one call; -E2BIG beyond it */
#define FSDP_TICKET_SIZE 16

struct fsdp_client; /* one connection: a session at the broker */
struct fsdp_tensor; /* a handle: this process's way to one tensor version */
struct fsdp_bundle; /* a bundle that is being staged */

enum fsdp_dtype {
	FSDP_BOOL = 1,
	FSDP_U8 = 2,
	FSDP_I8 = 3,
	FSDP_U16 = 4,
	FSDP_I16 = 5,
	FSDP_U32 = 6,
	FSDP_I32 = 7,
	FSDP_U64 = 8,
	FSDP_I64 = 9,
	FSDP_F16 = 10,
	FSDP_BF16 = 11,
	FSDP_F32 = 12,
	FSDP_F64 = 13,
	FSDP_F8_E4M3 = 14,
	FSDP_F8_E5M2 = 15,
	FSDP_C64 = 16,
	FSDP_C128 = 17
};

/* Bytes of one element; 0 if `dtype` is none. */
FSDP_API size_t fsdp_dtype_size(enum fsdp_dtype dtype);
/* "bf16", "f32", ...; "?" if `dtype` is none. */
FSDP_API const char *fsdp_dtype_name(enum fsdp_dtype dtype);

/*
 * The sentence of the calling thread's last failed call; "" before the first.
 * Valid until the thread's next call into the library.
 */
FSDP_API const char *fsdp_error(void);

/* The library's version, such as "0.1.0". */
FSDP_API const char *fsdp_version(void);

/* --- connection ---------------------------------------------------------- */

/* May a wait go on? Nonzero: no. */
typedef int fsdp_interrupt_fn(void *data);

struct fsdp_connect_options {
	size_t struct_size;
	/* Socket of the broker; NULL: $FSDP_SOCKET, else what exists of
	 * $XDG_RUNTIME_DIR/fsdpd.sock and, not for root, the user's own
	 * /tmp/fsdpd-UID/fsdpd.sock, else /run/fsdpd/fsdpd.sock. */
	const char *path;
	/* Bytes of memory this session may have live at a time; 0: only the
	 * broker's quotas. Allocations beyond it wait (see fsdp_alloc()): that
	 * is how a producer is held back by its consumers. */
	uint64_t budget;
	/* How long a call waits for a broker that is being restarted, and
	 * fsdp_close() for a device; 0: 10,000 ms. */
	int32_t reconnect_ms;
	/* Asked by the thread that waits in a call, whenever a signal ends its
	 * sleep and every 200 ms, with no lock of the library's; it may not
	 * call the library. If it says so the call returns -EINTR: what was
	 * asked for may still be done (a publication, say), but holds nothing.
	 * Not asked where this process must follow what the broker has done:
	 * by fsdp_close(), fsdp_release_sync() and fsdp_comm_leave(), and by
	 * fsdp_unshard(), fsdp_reshard(), fsdp_reduce() and fsdp_commit() while
	 * they ask the broker; nor while NCCL works in a rank. NULL: no signal
	 * ends a wait. */
	fsdp_interrupt_fn *interrupted;
	void *interrupted_data;
};

/*
 * Connect; `options` may be NULL. -ENOENT, -ECONNREFUSED: no broker there.
 * -EPROTO: one of another version. -EDQUOT: too many sessions of this user.
 */
FSDP_API int fsdp_connect(const struct fsdp_connect_options *options,
			  struct fsdp_client **ret);

/*
 * Say goodbye: every hold of this process ends, every mapping is unmapped,
 * every handle, staged bundle, communicator and group of the connection is
 * freed. No other call on the connection may be under way. NULL is fine. In a
 * forked child it frees the child's memory only.
 *
 * Waits for all that this process gave the devices that tensors are on, for a
 * time-out of each communicator and reconnect_ms for each device. -ETIMEDOUT:
 * they still work; the connection is closed, but mappings and holds stay until
 * the process ends, so that nobody else gets memory that is in use.
 */
FSDP_API int fsdp_close(struct fsdp_client *client);

/* One round trip; tells whether the broker is alive. */
FSDP_API int fsdp_ping(struct fsdp_client *client);

/* --- devices ------------------------------------------------------------- */

/*
 * A tensor lies in host memory or on a GPU. GPUs are named by UUID, since
 * ordinals differ from process to process. The CUDA driver is loaded when this
 * process first meets a tensor on a device, or asks for one; until then, and
 * on a node without GPUs, nothing here needs it.
 *
 * A *stream* is a CUstream (cudaStream_t) of the device's primary context,
 * which is the one that the CUDA runtime uses. (void *)1 is the legacy default
 * stream, (void *)2 the calling thread's, as in cuda.h. NULL is none: the
 * caller has synchronised, or wants the call to wait. Order between processes
 * follows the streams, and nothing synchronises behind the caller's back:
 *
 *     producer                            consumer
 *     fsdp_alloc_on
 *     kernels on S write fsdp_data_mut
 *     fsdp_publish, .stream = S           fsdp_get, .stream = T
 *                                         kernels on T read fsdp_data
 *                                         fsdp_release_on(tensor, T)
 *
 * None of these calls waits for the device by itself: T waits for what S was
 * given before the publication, and the memory is used for something else only
 * when T is past the release. A tensor can be published, gotten and released
 * again while nothing of it has run yet. One exception: where a device cannot
 * register pages read-only, as those on a bus of their own, a get of what
 * another user's stream writes waits itself, within timeout_ms. And the driver
 * may wait for all work of this process when memory is mapped (the first tensor
 * of a chunk), unmapped (the next request after a chunk has gone) or pinned (the
 * first copy).
 *
 * A chunk is mapped writable where the process's user may write it, and
 * read-only elsewhere: those of other users, of bundles that others committed,
 * and what others shared.
 *
 * If the producer dies before S has done its work, what waits for it is let
 * go and the tensor is *tainted*: its contents are undefined, and getting it
 * fails with -EOWNERDEAD. Whoever had it before asks fsdp_tensor_check().
 *
 * All of that is done by 64-bit stream memory operations. On a device without,
 * interprocess events do it, with these differences: only the process itself
 * can see how far its streams are, and it looks in its later calls (those that
 * speak to fsdpd, also while they wait); what it did not see before its death
 * is tainted, finished or not; a stream that waits for a process that dies
 * waits for ever; and at most 1,000 publications of a process, and 1,000
 * releases of a connection, may wait for streams: then -EAGAIN.
 *
 * Device memory is not there in a forked child, and CUDA cannot be used in it.
 */
struct fsdp_device {
	uint8_t uuid[16]; /* all 0: host memory */
};

#define FSDP_DEVICE_TEXT 41 /* room for the text of a device */

/* "GPU-01234567-89ab-cdef-0123-456789abcdef", as nvidia-smi -L shows it, "MIG-"
 * instead for an instance of a GPU, or "host". -EINVAL. Needs no driver. */
FSDP_API int fsdp_device_parse(const char *text, struct fsdp_device *ret);
/* The same back; "MIG-" only where the process has loaded the driver, which
 * alone knows what a UUID is of. Either form is the same device. */
FSDP_API void fsdp_device_format(const struct fsdp_device *device,
				 char ret[FSDP_DEVICE_TEXT]);

struct fsdp_device_entry {
	size_t struct_size;
	struct fsdp_device device;
	const char *name;    /* of the model */
	uint64_t size;       /* bytes of memory */
	int32_t ordinal;     /* in this process */
	bool may_be_shared;  /* not in exclusive or prohibited mode */
	bool is_test_double; /* of a driver that only plays one */
};
typedef int fsdp_device_fn(const struct fsdp_device_entry *entry, void *data);

/*
 * The devices that this process sees (CUDA_VISIBLE_DEVICES), by ordinal.
 * `entry` is borrowed, valid during the call; a nonzero return value ends the
 * walk and is returned. -ENODEV: there is no driver, or no device; -ENOSYS:
 * the driver is too old.
 */
FSDP_API int fsdp_devices(fsdp_device_fn *fn, void *data);

/* --- making tensors ------------------------------------------------------ */

struct fsdp_spec {
	enum fsdp_dtype dtype;
	uint32_t n_dims; /* 0..FSDP_MAX_DIMS; 0 dims is one element */
	int64_t shape[FSDP_MAX_DIMS]; /* a 0 makes an empty tensor: legal */
};

/* Who may use what is made, as with files. All 0: the caller alone. */
struct fsdp_access {
	uint32_t gid;  /* one of the caller's groups, or FSDP_GID_DEFAULT;
			* ignored if `mode` is 0 */
	uint32_t mode; /* 0600 to 0666, no x; 0 means 0600. It never changes:
			* a wider one is a copy. */
};
#define FSDP_GID_DEFAULT 0xffffffffu

/*
 * Allocate `n` tensors in one round trip. `access` NULL: 0600. The handles
 * are held and writable; the memory holds anything until it is written. If
 * there is no room, limbo is collected, evictable tensors go, and then the
 * call waits up to `timeout_ms` for others to release. -ENOMEM: the broker
 * has no room. -EDQUOT: this user's quota or this session's budget is used up.
 */
FSDP_API int fsdp_alloc(struct fsdp_client *client,
			const struct fsdp_spec *specs, size_t n,
			const struct fsdp_access *access, int32_t timeout_ms,
			struct fsdp_tensor **ret);

/*
 * The same on a device; `device` NULL or all 0: host memory. -ENODEV: this
 * process or the broker does not see it. -EBUSY, -EPERM: its compute mode
 * forbids that processes share it. -ENOMEM also if the device has no room.
 */
FSDP_API int fsdp_alloc_on(struct fsdp_client *client,
			   const struct fsdp_device *device,
			   const struct fsdp_spec *specs, size_t n,
			   const struct fsdp_access *access, int32_t timeout_ms,
			   struct fsdp_tensor **ret);

/*
 * A second tensor over the memory of `base`, which must be held: `strides`
 * (elements, may be NULL for contiguous) and `offset` bytes from its start.
 * It is anonymous until published and keeps the block alive by itself.
 * -ERANGE: it reaches outside of `base`.
 */
FSDP_API int fsdp_view(struct fsdp_tensor *base, const struct fsdp_spec *spec,
		       const int64_t *strides, uint64_t offset,
		       struct fsdp_tensor **ret);

enum fsdp_publish_flags {
	FSDP_REPLACE = 1,    /* the name may exist; its tensor is let go */
	FSDP_EVICTABLE = 2,  /* the broker may drop it when room is needed */
	FSDP_TIED = 4,       /* the name ends with this session */
	FSDP_MUST_EXIST = 8, /* with FSDP_REPLACE: do not create */
};

struct fsdp_publication {
	size_t struct_size;
	struct fsdp_tensor *tensor;
	/* NULL: anonymous; kept by holds and tickets alone. */
	const char *name;
	uint32_t flags;   /* enum fsdp_publish_flags */
	uint64_t ttl_ms;  /* the name ends after this; 0: never */
	uint64_t version; /* out: the version of the name, from 1; each
			   * publication adds 1 until the name is removed */
	/* Of a device tensor: it is written when this stream has done all that
	 * it was given before the call. NULL: it is written. */
	void *stream;
};

/*
 * Publish `n` tensors in one round trip. From then on the caller reads only
 * (by convention: its mapping stays writable); its hold stays, and may be
 * released before the stream is done. -EEXIST: a name is taken. -EPERM: the
 * name's first component belongs to another user. -EINVAL: a stream of another
 * device or context, or with a host tensor. -EOPNOTSUPP: the device has
 * neither 64-bit stream memory operations nor interprocess events; synchronise,
 * and publish without a stream. -EAGAIN: too many wait for streams, where
 * events do it (above); publish again when one of them has come so far.
 */
FSDP_API int fsdp_publish(struct fsdp_client *client,
			  struct fsdp_publication *publications, size_t n);

/* Take names away (a bundle's: its prefix with the '/'). -ENOENT, -EPERM. */
FSDP_API int fsdp_remove(struct fsdp_client *client, const char *const *names,
			 size_t n);

/* --- sharing memory that is there already ----------------------------------
 *
 * Tensors over device memory that the caller made itself, which then are like
 * all others. Memory of fsdp_alloc_on() is better where there is a choice.
 *
 * By cudaMalloc() it goes with the process (*legacy IPC*): when that ends its
 * tensors lose their names, and who holds one gets -EOWNERDEAD from
 * fsdp_tensor_check() and must let go. By virtual memory management
 * (ncclMemAlloc(), PyTorch's expandable segments) it is *donated*: what was
 * published of it stays. The mechanism is that of PyTorch's CudaIPCTypes.
 */

/*
 * Make `n` tensors over memory at `pointers` (device addresses), one for each
 * spec, contiguous, all in one allocation; they may overlap, and be shared
 * again. They are held and writable, as by fsdp_alloc(); the caller must not
 * free or reuse the memory before fsdp_unshare() says so. Whoever may read one
 * of them is given the whole allocation, and by legacy IPC can write there.
 *
 * -EINVAL: no device memory, memory of several allocations, or memory that
 * this process has got from fsdpd (hand on that tensor). -EOPNOTSUPP: managed
 * memory, pools (cudaMallocAsync()), virtual memory without a POSIX handle.
 * -EDQUOT, -ENOMEM: as fsdp_alloc().
 */
FSDP_API int fsdp_share(struct fsdp_client *client,
			const struct fsdp_spec *specs, void *const *pointers,
			size_t n, const struct fsdp_access *access,
			struct fsdp_tensor **ret);

/*
 * Ask for the memory back: ends the tensor's name, and waits until nobody uses
 * it or a view of it any more, on the host or a device, and no ticket for it is
 * out. 0: so it is, and the handle's hold is gone; also if it was so before.
 * -ETIMEDOUT: somebody does (the sentence says who); the tensor is in limbo,
 * the handle holds on, and the call may be repeated. -EPERM: another connection
 * shared it. -EINVAL: the handle is not held, nor can be.
 */
FSDP_API int fsdp_unshare(struct fsdp_tensor *tensor, int32_t timeout_ms);

/* --- finding and holding ------------------------------------------------- */

struct fsdp_get_options {
	size_t struct_size;
	int32_t timeout_ms; /* wait until all the names are there */
	/* Accept tensors of this user only (is_trust_set). Without it: of the
	 * caller's own user, of root, and of the owner of the name's first
	 * component. */
	bool is_trust_set;
	uint32_t trusted_uid;
	/* Device tensors: this stream waits until they are written; host
	 * tensors do not mind. NULL: the call waits, within timeout_ms, as it
	 * may have to for other users' (struct fsdp_device). */
	void *stream;
	/* Get tainted ones like any other. */
	bool accepts_tainted;
	/* Get a version of each name above this one, and wait for it; 0: any.
	 * A consumer passes the version that it had last, and so misses none
	 * that lasts until it asks: it gets the newest, which may be several
	 * further. */
	uint64_t newer_than;
	/* Only look at what this process has seen and still is so: there is no
	 * system call. -EAGAIN: something is not known here, or not known to be
	 * written; get it without this. Not for fsdp_bundle_get(). */
	bool known_only;
};

/*
 * Get and hold the tensors of `n` names, all of the same moment: of a bundle
 * either all of one version or all of the next. Known ones cost no system
 * call. `options` may be NULL: do not wait. -ENOENT: no such name, or no newer
 * version of it (yet). -ESTALE: `newer_than` is above the name's version, since
 * the name was removed and published again, which begins at 1. -EACCES: not
 * readable. -ETIMEDOUT. -EOWNERDEAD: tainted. -ENODEV: on a device that this
 * process does not see. Of the stream: as fsdp_publish().
 */
FSDP_API int fsdp_get(struct fsdp_client *client, const char *const *names,
		      size_t n, const struct fsdp_get_options *options,
		      struct fsdp_tensor **ret);

/*
 * The same for a program that waits for many things in one loop: begin the get,
 * end it when the descriptor of fsdp_fd() is readable.
 *
 *     fsdp_get_begin(client, &name, 1, &options, &pending);
 *     while ((r = fsdp_get_end(pending, &tensor)) == -EAGAIN)
 *             poll(&(struct pollfd){fsdp_fd(client), POLLIN}, 1, -1);
 *
 * The broker keeps the time-out. Several may be under way; when the descriptor
 * is readable any of them may be done, so try each. Try fsdp_get_end() once
 * before polling, since what is known here is there at once.
 */
struct fsdp_pending;

FSDP_API int fsdp_get_begin(struct fsdp_client *client,
			    const char *const *names, size_t n,
			    const struct fsdp_get_options *options,
			    struct fsdp_pending **ret);

/*
 * -EAGAIN: not yet, `pending` stays. Otherwise what fsdp_get() returns, and
 * `pending` is freed. It does not wait, but for a broker that is restarted
 * (reconnect_ms), and for device tensors without a stream.
 */
FSDP_API int fsdp_get_end(struct fsdp_pending *pending,
			  struct fsdp_tensor **ret);

/* Give up; what comes is let go. Each get must be ended or cancelled before
 * fsdp_close(). NULL is fine. */
FSDP_API void fsdp_get_cancel(struct fsdp_pending *pending);

/*
 * A descriptor for poll(), epoll and the like: readable while a pending get may
 * be done. Always the same one, the library's; do not read or close it. It may
 * be readable in vain, such as when another thread's answer has come. Without
 * pending gets it is not readable.
 */
FSDP_API int fsdp_fd(struct fsdp_client *client);

/*
 * Hold a known tensor again, after its last hold was released; no system
 * call. -ESTALE: that version is gone or was replaced; get it by name.
 * -EOWNERDEAD: it is tainted.
 */
FSDP_API int fsdp_acquire(struct fsdp_tensor *tensor);

/* One more hold of a handle that is held; no system call. -EINVAL: it is
 * not held. */
FSDP_API int fsdp_hold(struct fsdp_tensor *tensor);

/*
 * Drop one hold; no system call unless the tensor is in limbo. -EINVAL: the
 * handle is not held. Of a device tensor this says that the caller's work
 * with it is done (but for what a publication's stream is to write, which the
 * broker knows of); the same goes for fsdp_free() and fsdp_release_sync().
 */
FSDP_API int fsdp_release(struct fsdp_tensor *tensor);

/*
 * Drop one hold of a device tensor as of when `stream` has done all that it
 * was given before; does not wait. If holds were released on another stream,
 * this one first waits for that. NULL: fsdp_release(). Of the stream: as
 * fsdp_publish(); then the hold stays.
 */
FSDP_API int fsdp_release_on(struct fsdp_tensor *tensor, void *stream);

/*
 * Drop one hold of each and come back when the broker has done so: if they
 * were the last, the memory is free by then.
 */
FSDP_API int fsdp_release_sync(struct fsdp_client *client,
			       struct fsdp_tensor *const *tensors, size_t n);

/* Drop what the handle still holds, and the handle. NULL is fine. */
FSDP_API void fsdp_free(struct fsdp_tensor *tensor);

/*
 * Have one more stream wait until a device tensor that is held is written,
 * such as one from a ticket, which nothing has waited for; NULL: wait here.
 * Nothing to do for a host tensor. -ETIMEDOUT, -EOWNERDEAD: it is tainted. Of
 * the stream: as fsdp_publish().
 */
FSDP_API int fsdp_tensor_wait(struct fsdp_tensor *tensor, void *stream,
			      int32_t timeout_ms);

/*
 * Was it written? 0: yes. -EAGAIN: not yet. -EOWNERDEAD: never, its writer
 * died before. A stream's wait ends both ways, so whoever must know asks when
 * the stream is done. It may ask the broker, once.
 */
FSDP_API int fsdp_tensor_check(struct fsdp_tensor *tensor);

/* --- looking at a handle ------------------------------------------------- */

/*
 * The first element. Valid while the handle is held. NULL if it is not, or the
 * tensor has no elements. Writing through it faults, except in the process that
 * allocated it, before publishing: fsdp_data_mut(). Of a device tensor it is
 * an address of the device, in this process; only the device can use it, and
 * a fault there ends the use of CUDA in this process.
 */
FSDP_API const void *fsdp_data(const struct fsdp_tensor *tensor);
/* The same, writable; NULL if this process may not write here. For a bundle
 * member only until the bundle is committed. */
FSDP_API void *fsdp_data_mut(struct fsdp_tensor *tensor);

struct fsdp_info {
	size_t struct_size;
	enum fsdp_dtype dtype;
	uint32_t n_dims;
	int64_t shape[FSDP_MAX_DIMS];
	int64_t strides[FSDP_MAX_DIMS]; /* elements */
	uint64_t size;                  /* bytes of the elements */
	uint64_t version;               /* of the name; 0: anonymous */
	uint32_t slot;                  /* with `generation`: this version, */
	uint64_t generation;            /* node-wide, for ever */
	const char *name; /* "" if anonymous; valid while the handle lives */
	struct fsdp_device device; /* of a handle without elements: all 0 */
	bool is_tainted;
};
FSDP_API int fsdp_tensor_info(const struct fsdp_tensor *tensor,
			      struct fsdp_info *ret) FSDP_SIZED(2);

/* --- copying ---------------------------------------------------------------
 */

/*
 * Bytes of the host into a tensor and back, for programs without CUDA code of
 * their own: through pinned memory of the library's where the tensor is on a
 * device, plainly where it is not. All come back when the bytes are there;
 * they count from the first element, in the order of memory, and must lie in
 * the tensor's `size` (-ERANGE). -EACCES: fsdp_data_mut() would give NULL.
 */
FSDP_API int fsdp_copy_in(struct fsdp_tensor *tensor, uint64_t offset,
			  const void *from, uint64_t size);
/* Waits until the tensor is written. */
FSDP_API int fsdp_copy_out(void *to, struct fsdp_tensor *tensor,
			   uint64_t offset, uint64_t size);

/* Put the next `size` bytes of the i-th tensor into `into`. A negative errno
 * ends it all. */
typedef int fsdp_read_fn(size_t i, void *into, size_t size, void *data);

/*
 * Fill `n` tensors from the first byte to the last, in order, with what `read`
 * gives. For devices, reading and copying go on side by side. What `read`
 * refused is returned as it is, without a sentence.
 */
FSDP_API int fsdp_fill(struct fsdp_tensor *const *tensors, size_t n,
		       fsdp_read_fn *read, void *data);

/* --- tickets ---------------------------------------------------------------
 */

/*
 * A ticket is how an unnamed tensor travels: 16 secret bytes to send by any
 * pipe or queue. It keeps the tensor until it was redeemed `n_uses` times or
 * `ttl_ms` (> 0) are over. The redeemer must also have the right to read.
 */
struct fsdp_ticket {
	uint8_t bytes[FSDP_TICKET_SIZE];
};

FSDP_API int fsdp_ticket_make(struct fsdp_tensor *tensor, uint32_t n_uses,
			      uint64_t ttl_ms, struct fsdp_ticket *ret);

/* A ticket that is out, without the half of it that redeems. */
struct fsdp_ticket_entry {
	size_t struct_size;
	uint64_t id;   /* fsdp_ticket_id() of it */
	uint32_t slot; /* the tensor it keeps */
	uint64_t generation;
	const char *name;    /* of the tensor; "" if it has none */
	uint64_t block_size; /* bytes of memory that this keeps */
	uint32_t uid, pid;   /* of the process that made the ticket */
	uint32_t uses_left;
	uint64_t age_ms, ttl_left_ms;
};
/* As fsdp_entry_fn, below. */
typedef int fsdp_ticket_fn(const struct fsdp_ticket_entry *entry, void *data);

/* The first 8 bytes of a ticket, big-endian. They name it, and do not redeem
 * it: 64 bits stay secret. */
FSDP_API uint64_t fsdp_ticket_id(const struct fsdp_ticket *ticket);

/* The tickets that processes of the caller's user made; administrators see
 * all. */
FSDP_API int fsdp_tickets(struct fsdp_client *client, fsdp_ticket_fn *fn,
			  void *data);

/* Nobody redeems it from now on, and it keeps its tensor no more. For the user
 * whose process made it, and administrators. -ENOENT: it is unknown, used up,
 * or expired. -EPERM. */
FSDP_API int fsdp_ticket_revoke(struct fsdp_client *client, uint64_t id);

/* Turn tickets into held tensors. -ENOENT: unknown, used up, or expired. For
 * what is on a device, fsdp_tensor_wait() follows. */
FSDP_API int fsdp_ticket_redeem(struct fsdp_client *client,
				const struct fsdp_ticket *tickets, size_t n,
				struct fsdp_tensor **ret);

/* --- bundles ---------------------------------------------------------------
 */

struct fsdp_bundle_options {
	size_t struct_size;
	struct fsdp_access access;
	uint64_t size_hint; /* bytes of all members, each rounded up to 64, on a
			     * device to 512 */
	uint32_t flags;     /* FSDP_REPLACE, FSDP_MUST_EXIST, FSDP_TIED */
	uint64_t ttl_ms;
	struct fsdp_device device; /* of all members; all 0: host memory */
};

/*
 * Begin a bundle: many tensors published and replaced as one, such as a
 * model. `name` is the prefix of its members and ends in '/'. Nobody sees
 * anything of it before fsdp_bundle_commit(). -EEXIST: it is there, and
 * FSDP_REPLACE was not given. `options` may be NULL.
 */
FSDP_API int fsdp_bundle_begin(struct fsdp_client *client, const char *name,
			       const struct fsdp_bundle_options *options,
			       struct fsdp_bundle **ret);

/*
 * Allocate members; `names` are full names that begin with the bundle's. The
 * handles belong to the caller and must be written before the commit.
 */
FSDP_API int fsdp_bundle_alloc(struct fsdp_bundle *bundle,
			       const char *const *names,
			       const struct fsdp_spec *specs, size_t n,
			       struct fsdp_tensor **ret);

/*
 * Commit: unmaps the members' memory in this process, has the broker seal it
 * against any change for ever, and makes all names point to it at once. Maps
 * it again, read-only, at the same addresses. Frees `bundle` on success.
 * -EBUSY: the memory is still mapped writable elsewhere (the sentence names
 * the process); try again or abort. No kernel seals device memory: there the
 * work on the members must be done, this process's mapping stays as it is, and
 * that others map it read-only is libfsdp's doing.
 */
FSDP_API int fsdp_bundle_commit(struct fsdp_bundle *bundle,
				uint64_t *ret_version);

/* Give up: nothing was seen, the memory goes back. NULL is fine. */
FSDP_API void fsdp_bundle_abort(struct fsdp_bundle *bundle);

/*
 * Get and hold all members of a bundle in one request. `*ret` is an array of
 * `*ret_n` handles, in the order they were allocated; free each by
 * fsdp_free() and the array by free().
 */
FSDP_API int fsdp_bundle_get(struct fsdp_client *client, const char *name,
			     const struct fsdp_get_options *options,
			     struct fsdp_tensor ***ret, size_t *ret_n);

/* --- inspection --------------------------------------------------------------
 */

enum fsdp_state {
	FSDP_STATE_FREE = 0,
	FSDP_STATE_WRITING = 1,
	FSDP_STATE_PUBLISHED = 2,
	FSDP_STATE_LIMBO = 3
};

/* Whose memory a tensor lies in: see fsdp_share(). */
enum fsdp_shared {
	FSDP_SHARED_NOT = 0, /* the broker's */
	FSDP_SHARED_DONATED = 1,
	FSDP_SHARED_LEGACY = 2, /* a process's, and ends with it */
};

struct fsdp_entry {
	size_t struct_size;
	const struct fsdp_info *info;
	uint32_t uid, gid, mode;
	enum fsdp_state state;
	uint64_t age_ms;
	uint64_t ttl_left_ms; /* 0: no end */
	uint32_t n_holders;   /* sessions */
	uint32_t flags;       /* enum fsdp_publish_flags */
	uint64_t bundle;      /* 0: of none */
	enum fsdp_shared shared;
	/* The memory under it, which it keeps whole, even if it is a view of a
	 * part: a block of the broker's, or what a process shared. */
	uint64_t block;      /* equal for tensors in the same memory */
	uint64_t block_size; /* bytes allocated */
	uint32_t n_in_block; /* tensors; of shared memory at least so many */
	uint32_t payer_uid;  /* whose quota pays for it */
	/* Who allocated it; 0: its session has ended, or it is another user's
	 * (root and the admin group are told all). */
	uint32_t maker_pid;
	uint32_t n_tickets; /* that are out for the tensor */
	bool is_collective; /* a communicator's group keeps or uses it */
	/* The first bytes of a member's name that are its bundle's; 0: it is
	 * no member. */
	uint32_t bundle_name_size;
};

struct fsdp_holder {
	size_t struct_size;
	uint64_t session;
	uint32_t pid, uid;
	const char *command;
	int64_t holds;
	bool is_connected;
	bool is_writer;
	bool is_tainted; /* what is held */
};

struct fsdp_peer {
	size_t struct_size;
	uint64_t session;
	uint32_t pid, uid;
	const char *command;
	bool is_connected;
	uint64_t n_slots; /* tensors that it holds */
	uint64_t
		n_bytes; /* of the memory that it allocated and that is there */
	uint64_t n_requests, age_ms;
	uint32_t n_waiting; /* requests that wait */
};

/* A first component of names. */
struct fsdp_prefix {
	size_t struct_size;
	const char *name;
	uint32_t uid;     /* its owner */
	uint32_t n_names; /* tensors that are shown below it, not in bundles */
	uint32_t n_bundles; /* bundles that are shown below it */
	bool is_configured; /* by the administrator; else by the first use */
	uint64_t left_ms;   /* until it has no owner, since nothing is below it;
			       0: it keeps its owner */
};

/* Callbacks get borrowed data, valid during the call; a nonzero return value
 * ends the walk and is returned. */
typedef int fsdp_entry_fn(const struct fsdp_entry *entry, void *data);
typedef int fsdp_holder_fn(const struct fsdp_holder *holder, void *data);
typedef int fsdp_peer_fn(const struct fsdp_peer *peer, void *data);
typedef int fsdp_prefix_fn(const struct fsdp_prefix *prefix, void *data);
typedef int fsdp_value_fn(const char *name, uint64_t value, void *data);

/* Named tensors whose names begin with `prefix` (NULL: all), as far as the
 * caller may read them; in no particular order. */
FSDP_API int fsdp_list(struct fsdp_client *client, const char *prefix,
		       fsdp_entry_fn *fn, void *data);
/*
 * All tensors, in lists or not, whose memory the caller's user pays for, of
 * administrators the tensors of everybody: also those that are being written,
 * staged in a bundle, in limbo, without a name, or kept by a ticket. The blocks
 * are together what fsdp_status() calls own_bytes and own_device_bytes, or, for
 * an administrator, bytes_live and device_bytes_live; memory of legacy IPC is
 * in the list, and charged to nobody.
 */
FSDP_API int fsdp_list_all(struct fsdp_client *client, fsdp_entry_fn *fn,
			   void *data);
/* Tensors in limbo: nothing keeps them, somebody holds them. */
FSDP_API int fsdp_limbo(struct fsdp_client *client, fsdp_entry_fn *fn,
			void *data);
/* Who holds the tensor of this name; its owner and administrators may ask. */
FSDP_API int fsdp_who(struct fsdp_client *client, const char *name,
		      fsdp_holder_fn *fn, void *data);
/* The same for one slot, as listed by fsdp_limbo(). */
FSDP_API int fsdp_who_slot(struct fsdp_client *client, uint32_t slot,
			   uint64_t generation, fsdp_holder_fn *fn, void *data);
FSDP_API int fsdp_clients(struct fsdp_client *client, fsdp_peer_fn *fn,
			  void *data);
/* First components of names that have an owner: those of the configuration,
 * the caller's own, and for root and administrators all. */
FSDP_API int fsdp_prefixes(struct fsdp_client *client, fsdp_prefix_fn *fn,
			   void *data);
/* Counters by name, then what an operator should know ("" if nothing);
 * `ret_note` may be NULL; free() it. */
FSDP_API int fsdp_status(struct fsdp_client *client, fsdp_value_fn *fn,
			 void *data, char **ret_note);
/* Begin anew with the counters that are a maximum (loop_longest_ns). -EPERM
 * unless the caller is root or a member of admin_group. */
FSDP_API int fsdp_status_reset(struct fsdp_client *client);

#ifdef __cplusplus
}
#endif

#include "fsdp_comm.h"
