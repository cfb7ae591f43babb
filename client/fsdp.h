/*
 * libfsdp: publish, find, hold and release tensors through fsdpd, the node's
 * tensor memory broker, without copies.
 *
 * A *tensor* is a typed view of a block of memory that the broker owns. The
 * process that makes it writes in place and publishes it under a name (or
 * passes it on by a ticket); every other process that may read it maps the
 * same memory read-only. The memory lives as long as anything keeps it: a
 * name, a ticket, its writer, or a hold. When a process dies, the broker drops
 * its holds. When the broker dies and is restarted under systemd or `fsdpd
 * --supervised`, mappings, names and holds stay, and the library reconnects by
 * itself.
 *
 * Conventions
 *   - Functions return 0 or a negative errno. After a failure fsdp_error()
 *     returns a message with the object, the cause and the remedy.
 *   - Shapes and strides count elements; sizes and offsets count bytes; times
 *     are in milliseconds (0: do not wait, -1: wait for ever).
 *   - Outputs are written only on success. A call on several objects either
 *     succeeds for all of them or changes nothing.
 *   - A struct that begins with `struct_size` may grow: see below.
 *   - Functions that can fail refuse a NULL or freed handle (-EINVAL), and
 *     fsdp_data() returns NULL for it; freeing a handle again does nothing. The
 *     library reuses the memory of a freed handle for later ones, so an old
 *     pointer may refer to another tensor. After fsdp_close() it is invalid.
 *   - All functions may be called from any thread. The library installs no
 *     signal handler. It starts threads only to call the driver and NCCL with
 *     a time limit, to unmap memory, and for fsdp_channel_fd(); they block all
 *     signals.
 *   - After fork() the child cannot use the connection (-ECHILD) and must open
 *     its own. Read-only memory stays mapped in the child, and stays valid
 *     while the parent holds it. Of memory that the parent may write, the
 *     child has only the addresses: its use is a SIGSEGV.
 *   - A program that closes descriptors of the library, for example by
 *     closefrom(), loses the connection (-EBADF); see libfsdp(3).
 *
 * Structs that may grow
 *   Later releases append fields to structs that begin with `struct_size`, so
 *   that programs and libraries of different releases work together.
 *   - Options and other inputs: 0 stands for the size in the first release,
 *     so that designated initialisers can omit it. A program that uses a field
 *     marked "since" a later release sets struct_size to the sizeof of the
 *     struct. A library that does not know such a field ignores it while it is
 *     0, and otherwise refuses the call (-E2BIG).
 *   - Outputs: initialise `struct fsdp_info info = {.struct_size =
 *     sizeof(info)};`, or with {0} for the first release's fields. The library
 *     fills the fields that fit, and stores their size in struct_size.
 *   - A struct that is passed to a callback belongs to the library, and its
 *     struct_size says how many bytes of it are valid.
 *   - All items of an array must have the same struct_size, which is also the
 *     distance from one item to the next. -EINVAL: the struct_sizes differ, or
 *     one is smaller than in the first release.
 *
 * The mechanism is that of PyTorch (torch/csrc/CudaIPCTypes): each process has
 * a counter for each tensor, and blocks that still have users wait in limbo.
 * The broker does the work of PyTorch's producer, but outlives the processes.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_API __attribute__((visibility("default")))

/* Makes the compiler warn if the struct of this argument is uninitialised. */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#define FSDP_SIZED(argument) __attribute__((access(read_write, argument)))
#else
#define FSDP_SIZED(argument)
#endif

#define FSDP_MAX_DIMS    8
#define FSDP_MAX_NAME    255 /* bytes, without the final 0 */
#define FSDP_MAX_BATCH   256 /* items in one call; -E2BIG beyond it */
#define FSDP_TICKET_SIZE 16

struct fsdp_client; /* a connection: a session at the broker */
struct fsdp_tensor; /* a handle of this process for one tensor version */
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

/* Returns the bytes of one element; 0 if `dtype` is invalid. */
FSDP_API size_t fsdp_dtype_size(enum fsdp_dtype dtype);
/* Returns "bf16", "f32", ...; "?" if `dtype` is invalid. */
FSDP_API const char *fsdp_dtype_name(enum fsdp_dtype dtype);

/*
 * Returns the message of the calling thread's last failed call; "" if no call
 * has failed. It is valid until the thread's next call into the library.
 */
FSDP_API const char *fsdp_error(void);

/* Returns the library's version, such as "0.1.0". */
FSDP_API const char *fsdp_version(void);

/* --- connection ---------------------------------------------------------- */

/* Returns nonzero if the wait must end. */
typedef int fsdp_interrupt_fn(void *data);

struct fsdp_connect_options {
	size_t struct_size;
	/* Socket of the broker. NULL: $FSDP_SOCKET; if it is not set,
	 * $XDG_RUNTIME_DIR/fsdpd.sock or, except for root, the user's own
	 * /tmp/fsdpd-UID/fsdpd.sock, if it exists and the directory is this
	 * user's; otherwise /run/fsdpd/fsdpd.sock. */
	const char *path;
	/* Maximum memory that this session may have allocated at a time, in
	 * bytes; 0: only the broker's quotas apply. Allocations beyond it wait
	 * (see fsdp_alloc()), so that slow consumers slow their producer. */
	uint64_t budget;
	/* How long calls wait for a broker that is being restarted. The time
	 * begins with the first call that cannot reach the broker; when it has
	 * passed, calls try once and fail until the broker is back. The time is
	 * also the limit for the broker's reply to a new connection, and for
	 * each device that fsdp_close() waits for. 0: 10,000 ms. */
	int32_t reconnect_ms;
	/* Called whenever a signal ends the sleep of a call, and every 200 ms,
	 * by the thread that waits, without a lock of the library. It must not
	 * call the library. If it returns nonzero, the call returns -EINTR: the
	 * request may still be carried out (a publication, for example), but no
	 * tensor is held, and no bundle, channel or rank is open: if a reply
	 * comes later, the next call returns its holds, and ends what it has
	 * begun. fsdp_bundle_abort(), fsdp_comm_leave(), fsdp_channel_end() and
	 * fsdp_channel_close() only stop waiting, and the broker carries out
	 * their requests later; for fsdp_close() see there. It is not called
	 * where holds of this process and the broker's counts change together:
	 * in fsdp_release_sync() and fsdp_item_keep(), and in fsdp_unshard(),
	 * fsdp_reshard(), fsdp_reduce() and fsdp_commit() while they wait for
	 * the broker; nor while NCCL works. NULL: signals do not end a wait. */
	fsdp_interrupt_fn *interrupted;
	void *interrupted_data;
};

/*
 * Connects to the broker; `options` may be NULL. -ENOENT, -ECONNREFUSED: no
 * broker listens there. -EPROTO: the broker has another version. -EDQUOT: this
 * user has too many sessions. -ESHUTDOWN: the broker is being drained
 * (fsdp_drain()).
 */
FSDP_API int fsdp_connect(const struct fsdp_connect_options *options,
			  struct fsdp_client **ret);

/*
 * Closes the connection: drops every hold of this process, unmaps every
 * mapping, and frees every handle, staged bundle, communicator and group of the
 * connection. No other call on the connection may be running. `client` may be
 * NULL. In a forked child it frees the child's copies, and does not change the
 * parent's connection. If the broker is away for longer than reconnect_ms, or
 * the wait for it is interrupted, the call returns 0, too, but the broker may
 * keep the session until this process ends.
 *
 * The call waits for all work of this process on the devices that have tensors,
 * at most the time-out of each communicator and reconnect_ms for each device.
 * -ETIMEDOUT: a device is still working; the connection is closed, but mappings
 * and holds stay until the process ends, so that memory in use is not given to
 * other processes.
 */
FSDP_API int fsdp_close(struct fsdp_client *client);

/* Makes one round trip; shows whether the broker is alive. */
FSDP_API int fsdp_ping(struct fsdp_client *client);

/* --- devices ------------------------------------------------------------- */

/*
 * A tensor is in host memory or on a GPU. GPUs are named by UUID, because
 * ordinals differ from process to process. The library loads the CUDA driver
 * when this process first gets a tensor on a device, or asks for a device; it
 * works without the driver until then, and on a node without GPUs.
 *
 * A *stream* is a CUstream (cudaStream_t) of the device's primary context,
 * which is the one that the CUDA runtime uses. (void *)1 is the legacy default
 * stream, (void *)2 the calling thread's, as in cuda.h. NULL means no stream:
 * the caller has synchronised, or wants the call to wait. A stream that was
 * destroyed must not be passed: the driver crashes. Streams order work between
 * processes, without hidden synchronisation:
 *
 *     producer                            consumer
 *     fsdp_alloc_on
 *     kernels on S write fsdp_data_mut
 *     fsdp_publish, .stream = S           fsdp_get, .stream = T
 *                                         kernels on T read fsdp_data
 *                                         fsdp_release_on(tensor, T)
 *
 * These calls return without waiting for the device: T waits for the work that
 * S was given before the publication, and the memory is reused only when T has
 * reached the release. A tensor can be published, gotten and released again
 * before any of its kernels has run. There is one exception: if a device cannot
 * register pages read-only (attribute 113 of the driver), a get of a tensor
 * that another user's stream writes waits on the host, within timeout_ms. Also,
 * the driver may wait for all work of this process when memory is mapped (for
 * the first tensor of a chunk), unmapped (in the next request after a chunk was
 * freed) or pinned (for the first copy).
 *
 * A chunk of a device is mapped writable if the process's user may write it.
 * Chunks of other users, of bundles that others committed, and chunks that
 * others shared are mapped read-only.
 *
 * If the producer dies before S has finished its work, the streams that wait
 * for it are woken and the tensor is *tainted*: its contents are undefined, and
 * getting it fails with -EOWNERDEAD. Processes that got the tensor before can
 * call fsdp_tensor_check().
 *
 * This ordering uses 64-bit stream memory operations. On a device without them,
 * interprocess events are used, with these differences:
 *   - Only the process itself can see the progress of its streams. It looks at
 *     them in its later calls that send a request to fsdpd, also while these
 *     calls wait.
 *   - If a process dies, each tensor whose completion it had not seen yet is
 *     tainted, even if its stream had finished.
 *   - A stream that waits for a process that dies waits for ever.
 *   - At most 1,000 publications of a process, and 1,000 releases of a
 *     connection, may wait for streams; further ones fail with -EAGAIN.
 *
 * A forked child has no device memory and cannot use CUDA.
 */
struct fsdp_device {
	uint8_t uuid[16]; /* all 0: host memory */
};

#define FSDP_DEVICE_TEXT 41 /* size of a buffer for the text of a device */

/* Parses "GPU-01234567-89ab-cdef-0123-456789abcdef", as nvidia-smi -L shows it,
 * the same with "MIG-" for an instance of a GPU, or "host". It does not load
 * the driver. -EINVAL: `text` has none of these forms. */
FSDP_API int fsdp_device_parse(const char *text, struct fsdp_device *ret);
/* Formats a device in the same way. Only the driver knows whether a UUID is
 * that of an instance, so the text begins with "MIG-" only if the process has
 * loaded the driver. fsdp_device_parse() accepts both forms. */
FSDP_API void fsdp_device_format(const struct fsdp_device *device,
				 char ret[FSDP_DEVICE_TEXT]);

struct fsdp_device_entry {
	size_t struct_size;
	struct fsdp_device device;
	const char *name;   /* of the model, such as "NVIDIA H100 PCIe" */
	uint64_t size;      /* of its memory, in bytes */
	int32_t ordinal;    /* its number in this process, from 0 */
	bool may_be_shared; /* its compute mode allows several processes */
	bool is_fake;       /* its driver is a fake for tests */
};
typedef int fsdp_device_fn(const struct fsdp_device_entry *entry, void *data);

/*
 * Calls `fn` for each device that this process sees (CUDA_VISIBLE_DEVICES), by
 * ordinal. `entry` is borrowed and valid during the call; a nonzero return
 * value of `fn` ends the iteration and is returned. -ENODEV: there is no
 * driver, or no device. -ENOSYS: the driver is too old.
 */
FSDP_API int fsdp_devices(fsdp_device_fn *fn, void *data);

/* --- making tensors ------------------------------------------------------ */

struct fsdp_spec {
	enum fsdp_dtype dtype;
	uint32_t n_dims; /* 0 to FSDP_MAX_DIMS; 0: a scalar of one element */
	int64_t shape[FSDP_MAX_DIMS]; /* if any is 0, the tensor is empty */
};

/* Permissions of new tensors, as with files. All 0: only the caller's user. */
struct fsdp_access {
	uint32_t gid;  /* one of the caller's groups, or FSDP_GID_DEFAULT;
			* ignored if `mode` is 0 */
	uint32_t mode; /* 0600 to 0666, without execute bits; 0 means 0600. It
			* cannot be changed later; copy the tensor instead. */
};
#define FSDP_GID_DEFAULT 0xffffffffu

/*
 * Allocates `n` tensors in one round trip. `access` NULL: 0600. The handles
 * are held and writable; the contents are undefined until they are written. If
 * memory is short, the broker collects limbo and drops evictable tensors; then
 * the call waits up to `timeout_ms` until other processes release memory.
 * -ENOMEM: the broker has too little memory. -EDQUOT: this user's quota or this
 * session's budget is used up.
 */
FSDP_API int fsdp_alloc(struct fsdp_client *client,
			const struct fsdp_spec *specs, size_t n,
			const struct fsdp_access *access, int32_t timeout_ms,
			struct fsdp_tensor **ret);

/*
 * Does the same on a device; `device` NULL or all 0: host memory. -ENODEV: this
 * process or the broker does not see the device. -EBUSY, -EPERM: its compute
 * mode forbids that processes share it. -ENOMEM: also if the device has too
 * little memory.
 */
FSDP_API int fsdp_alloc_on(struct fsdp_client *client,
			   const struct fsdp_device *device,
			   const struct fsdp_spec *specs, size_t n,
			   const struct fsdp_access *access, int32_t timeout_ms,
			   struct fsdp_tensor **ret);

/*
 * Makes a second tensor over the memory of `base`, which must be held.
 * `strides` are in elements (NULL: contiguous); `offset` is in bytes from the
 * start of `base`. The view is anonymous until it is published, and keeps the
 * block of memory by itself. -ERANGE: it extends outside of `base`. -EBUSY: a
 * device has not finished writing `base`, and thousands of views wait for that.
 */
FSDP_API int fsdp_view(struct fsdp_tensor *base, const struct fsdp_spec *spec,
		       const int64_t *strides, uint64_t offset,
		       struct fsdp_tensor **ret);

enum fsdp_publish_flags {
	FSDP_REPLACE = 1,    /* the name may exist; it drops the old tensor */
	FSDP_EVICTABLE = 2,  /* the broker may drop it when memory is short */
	FSDP_TIED = 4,       /* the name is removed with this session */
	FSDP_MUST_EXIST = 8, /* with FSDP_REPLACE: the name must exist */
};

struct fsdp_publication {
	size_t struct_size;
	struct fsdp_tensor *tensor;
	/* NULL or "": anonymous; only holds and tickets keep it. */
	const char *name;
	uint32_t flags;   /* enum fsdp_publish_flags */
	uint64_t ttl_ms;  /* the name is removed after this; 0: never */
	uint64_t version; /* out: the version of the name, from 1; each
			   * publication adds 1 until the name is removed */
	/* For a device tensor: it is written when this stream has finished all
	 * work that it was given before the call. NULL: it is written now. */
	void *stream;
};

/*
 * Publishes `n` tensors in one round trip. Afterwards the caller may only read
 * them (by convention: its mapping stays writable). Its hold stays, and may be
 * released before the stream has finished. -EEXIST: a name is taken. -EPERM:
 * another user owns the name's first component. -EINVAL: the stream is of
 * another device or context, or the tensor is in host memory. -EOPNOTSUPP: the
 * device has neither 64-bit stream memory operations nor interprocess events;
 * synchronise, and publish without a stream. -EAGAIN: with interprocess events
 * (struct fsdp_device), too many publications wait for streams; publish again
 * when one of the streams has finished its work.
 */
FSDP_API int fsdp_publish(struct fsdp_client *client,
			  struct fsdp_publication *publications, size_t n);

/* Removes names. The name of a bundle is its prefix with the '/'. -ENOENT: a
 * name does not exist. -EPERM: another user owns it. */
FSDP_API int fsdp_remove(struct fsdp_client *client, const char *const *names,
			 size_t n);

/* --- finding and holding ------------------------------------------------- */

struct fsdp_get_options {
	size_t struct_size;
	/* How long to wait until all names exist. */
	int32_t timeout_ms;
	/* With is_trust_set, accept tensors of this user only. Without it,
	 * accept tensors of the caller's own user, of root, and of the owner of
	 * the name's first component. */
	bool is_trust_set;
	uint32_t trusted_uid;
	/* For device tensors: this stream waits until they are written; host
	 * tensors ignore it. NULL: the call waits, within timeout_ms. It may
	 * also have to wait for tensors of other users (struct fsdp_device). */
	void *stream;
	/* Get tainted tensors like any others. */
	bool accepts_tainted;
	/* Wait for a version of each name above this one; 0: any version. A
	 * consumer passes the version that it had last. It gets the newest
	 * version, and misses only those that were replaced before it asked. */
	uint64_t newer_than;
	/* Get only tensors whose descriptors this process has cached, without a
	 * request. -EAGAIN: a tensor is not cached, has been replaced or
	 * removed, or is not known to be written; get it without this option.
	 * Only fsdp_get() accepts it (-EINVAL). */
	bool known_only;
	/* For bundles only (-EINVAL): get exactly this version, which may be an
	 * older one that is kept (fsdp_bundle_options.n_kept) or a future one;
	 * 0: the newest. -ESTALE: the version is no longer kept. -EINVAL:
	 * newer_than is set, too. */
	uint64_t version;
};

/*
 * Gets and holds the tensors of `n` names as they are at one moment: members of
 * a bundle are either all of one version or all of the next. Tensors whose
 * descriptors are cached cost no system call, except that a get looks once in a
 * second whether the broker is still there. If another broker runs, the get
 * reconnects; if none runs, it succeeds nevertheless. `options` NULL: do not
 * wait. -ENOENT: the name, or a newer version of it, does not exist (yet).
 * -ESTALE: `newer_than` is above the name's version, because the name was
 * removed and published again, which starts at 1; or the broker does not know
 * this process (any more), and fsdp_error() says so. -EACCES: the tensor is not
 * readable. -ETIMEDOUT. -EOWNERDEAD: it is tainted. -ENODEV: it is on a device
 * that this process does not see. For errors of the stream see fsdp_publish().
 */
FSDP_API int fsdp_get(struct fsdp_client *client, const char *const *names,
		      size_t n, const struct fsdp_get_options *options,
		      struct fsdp_tensor **ret);

/*
 * These functions do the same in an event loop: begin the get, and end it when
 * the descriptor of fsdp_fd() is readable.
 *
 *     fsdp_get_begin(client, &name, 1, &options, &pending);
 *     while ((r = fsdp_get_end(pending, &tensor)) == -EAGAIN)
 *             poll(&(struct pollfd){fsdp_fd(client), POLLIN}, 1, -1);
 *
 * The broker keeps the time-out. Several gets may be pending; when the
 * descriptor is readable, any of them may be complete, so try each. Try
 * fsdp_get_end() once before polling, because a get of cached tensors is
 * complete at once.
 */
struct fsdp_pending;

FSDP_API int fsdp_get_begin(struct fsdp_client *client,
			    const char *const *names, size_t n,
			    const struct fsdp_get_options *options,
			    struct fsdp_pending **ret);

/*
 * Returns -EAGAIN while the get is incomplete; then `pending` stays. Otherwise
 * it returns what fsdp_get() returns, and frees `pending`. It waits only for a
 * broker that is being restarted (reconnect_ms), and for device tensors without
 * a stream.
 */
FSDP_API int fsdp_get_end(struct fsdp_pending *pending,
			  struct fsdp_tensor **ret);

/* Cancels the get of names or of a bundle; its tensors are released when the
 * reply arrives. Each get must be ended or cancelled before fsdp_close().
 * `pending` may be NULL. */
FSDP_API void fsdp_get_cancel(struct fsdp_pending *pending);

/*
 * Returns a descriptor for poll(), epoll and the like, which is readable while
 * a pending get may be complete. All calls on a connection return the same
 * descriptor. It belongs to the library; do not read or close it. It may be
 * readable although no get is complete, for example when another thread's reply
 * has arrived. It is not readable if no get is pending.
 */
FSDP_API int fsdp_fd(struct fsdp_client *client);

/*
 * Holds a tensor again after its last hold was released, without a system call.
 * -ESTALE: that version was freed or replaced; get the tensor by name.
 * -EOWNERDEAD: it is tainted.
 */
FSDP_API int fsdp_acquire(struct fsdp_tensor *tensor);

/* Adds a hold to a handle that is held, without a system call. -EINVAL: it is
 * not held. */
FSDP_API int fsdp_hold(struct fsdp_tensor *tensor);

/*
 * Drops one hold, without a system call unless the tensor is in limbo. -EINVAL:
 * the handle is not held. The caller's work on a device tensor must be finished
 * (except for the writes of a publication's stream, for which the broker
 * waits); the same applies to fsdp_free() and fsdp_release_sync().
 */
FSDP_API int fsdp_release(struct fsdp_tensor *tensor);

/*
 * Drops one hold of a device tensor when `stream` has finished all work that it
 * was given before the call; the call itself does not wait. If holds were
 * released on another stream, this stream first waits for that one. With a
 * `stream` of NULL it does the same as fsdp_release(). For errors of the stream
 * see fsdp_publish(); after an error the hold stays.
 */
FSDP_API int fsdp_release_on(struct fsdp_tensor *tensor, void *stream);

/*
 * Drops one hold of each tensor, and returns when the broker has processed
 * this: if the holds were the last ones, the memory has been freed.
 * -EINPROGRESS: the broker went away during the request; the holds are dropped,
 * and the memory is freed when it is back. After other errors the holds stay.
 */
FSDP_API int fsdp_release_sync(struct fsdp_client *client,
			       struct fsdp_tensor *const *tensors, size_t n);

/* Drops all holds of the handle, and frees it. `tensor` may be NULL. If the
 * last fsdp_unshare() of the handle returned -EINPROGRESS, the call repeats it,
 * which may wait for the broker. */
FSDP_API void fsdp_free(struct fsdp_tensor *tensor);

/*
 * Makes another stream wait until a device tensor that is held is written; for
 * example a tensor from a ticket, which no stream has waited for. With a
 * `stream` of NULL the call waits, up to `timeout_ms`. It does nothing for a
 * host tensor. -ETIMEDOUT: the tensor is not written yet. -EOWNERDEAD: it is
 * tainted. For errors of the stream see fsdp_publish().
 */
FSDP_API int fsdp_tensor_wait(struct fsdp_tensor *tensor, void *stream,
			      int32_t timeout_ms);

/*
 * Returns 0 if the tensor has been written. -EAGAIN: it has not been written
 * yet. -EOWNERDEAD: its writer died before. A stream's wait ends in either
 * case, so call this when the stream has finished. It may send one request.
 */
FSDP_API int fsdp_tensor_check(struct fsdp_tensor *tensor);

/* --- looking at a handle ------------------------------------------------- */

/*
 * Returns the address of the first element, which is valid while the handle is
 * held; NULL if it is not held, or the tensor has no elements. Writes through
 * this pointer fault, except in the process that allocated the tensor, before
 * it is published, and after fsdp_ticket_redeem_mut(): see fsdp_data_mut(). For
 * a device tensor it is an address on the device, valid in this process; only
 * the device can use it. If it is read-only, the driver refuses to copy or to
 * fill there; a kernel that writes there faults, which makes CUDA unusable in
 * this process.
 */
FSDP_API const void *fsdp_data(const struct fsdp_tensor *tensor);
/* Returns the same address, writable; NULL if this process may not write the
 * tensor. A member of a bundle is writable until the bundle is committed. */
FSDP_API void *fsdp_data_mut(struct fsdp_tensor *tensor);

/*
 * Maps a held tensor a second time, copy-on-write, for a caller that wants to
 * change it: the kernel copies each page when it is first written, and other
 * processes do not see the changes. `*ret` is the address of the first element.
 * The call sends a request to the broker. Hold the tensor until
 * fsdp_private_unmap(), so that the broker counts its memory as long as it is
 * mapped. -EOPNOTSUPP: the tensor is not in a committed bundle in host memory;
 * its memory could be reused, and pages of the mapping that were not written
 * would then show the new contents. Copy the tensor instead.
 */
FSDP_API int fsdp_private_map(struct fsdp_tensor *tensor, void **ret);
/* Unmaps what fsdp_private_map() mapped, also in a forked child. `size` is that
 * of fsdp_tensor_info(). */
FSDP_API void fsdp_private_unmap(void *data, uint64_t size);

struct fsdp_info {
	size_t struct_size;
	enum fsdp_dtype dtype;
	uint32_t n_dims;
	int64_t shape[FSDP_MAX_DIMS];
	int64_t strides[FSDP_MAX_DIMS]; /* elements */
	/* bytes from the first element to the end of the last one; the gaps
	 * between the elements of a view with strides count, too */
	uint64_t size;
	uint64_t version; /* of the name; 0: anonymous */
	/* Together they identify this version on the node for ever. */
	uint32_t slot;
	uint64_t generation;
	const char *name; /* "" if anonymous; valid until the handle is freed */
	struct fsdp_device device; /* all 0 for a tensor without elements */
	bool is_tainted;
};
FSDP_API int fsdp_tensor_info(const struct fsdp_tensor *tensor,
			      struct fsdp_info *ret) FSDP_SIZED(2);

/* --- copying ------------------------------------------------------------- */

/*
 * These copy bytes from the host to a tensor and back, for programs without
 * CUDA code. If the tensor is on a device, they use pinned memory of the
 * library. They return when the copy is complete. Offsets count from the first
 * element, in memory order. -ERANGE: the range is not within the tensor's
 * `size`. -EACCES: fsdp_data_mut() would return NULL.
 */
FSDP_API int fsdp_copy_in(struct fsdp_tensor *tensor, uint64_t offset,
			  const void *from, uint64_t size);
/* Also waits until the tensor is written. */
FSDP_API int fsdp_copy_out(void *to, struct fsdp_tensor *tensor,
			   uint64_t offset, uint64_t size);

/* Stores the next `size` bytes of the i-th tensor (from 0) in `into`, and
 * returns 0. A negative errno ends fsdp_fill(), which returns it. */
typedef int fsdp_read_fn(size_t i, void *into, size_t size, void *data);

/*
 * Fills `n` tensors from the first byte to the last, in order, with the bytes
 * from `read`. On devices, reading and copying overlap.
 */
FSDP_API int fsdp_fill(struct fsdp_tensor *const *tensors, size_t n,
		       fsdp_read_fn *read, void *data);

/* --- digests ------------------------------------------------------------- */

/*
 * Records the XXH3 (64 bits, without a seed) of the elements in row-major order
 * of `n` tensors of one connection that this process has written and not yet
 * published; 0 means that the digest is unknown. The broker does not compute or
 * check digests; it keeps each with its tensor and shows it in struct
 * fsdp_entry, so that any reader can verify the contents. -EPERM: this process
 * is not writing the tensor.
 */
FSDP_API int fsdp_set_digests(struct fsdp_tensor *const *tensors,
			      const uint64_t *digests, size_t n);

/* --- tickets ------------------------------------------------------------- */

/*
 * A ticket passes a tensor without a name to another process: 16 secret bytes
 * that can be sent over any pipe or queue. It keeps the tensor until it has
 * been redeemed `n_uses` times or `ttl_ms` (> 0) have passed. The process that
 * redeems it must also have permission to read the tensor.
 */
struct fsdp_ticket {
	uint8_t bytes[FSDP_TICKET_SIZE];
};

FSDP_API int fsdp_ticket_make(struct fsdp_tensor *tensor, uint32_t n_uses,
			      uint64_t ttl_ms, struct fsdp_ticket *ret);

/* A valid ticket, without its secret half. */
struct fsdp_ticket_entry {
	size_t struct_size;
	uint64_t id; /* see fsdp_ticket_id() */
	/* The tensor that it keeps: see struct fsdp_info. */
	uint32_t slot;
	uint64_t generation;
	const char *name;    /* of the tensor; "" if it has no name */
	uint64_t block_size; /* bytes of memory that it keeps */
	uint32_t uid, pid;   /* of the process that made the ticket */
	uint32_t uses_left;
	uint64_t age_ms, ttl_left_ms;
};
/* See fsdp_entry_fn in fsdp_inspect.h. */
typedef int fsdp_ticket_fn(const struct fsdp_ticket_entry *entry, void *data);

/* Returns the first 8 bytes of a ticket, big-endian. They identify the ticket,
 * but cannot redeem it, because the other 64 bits stay secret. */
FSDP_API uint64_t fsdp_ticket_id(const struct fsdp_ticket *ticket);

/* Lists the tickets that processes of the caller's user made; administrators
 * see all tickets. */
FSDP_API int fsdp_tickets(struct fsdp_client *client, fsdp_ticket_fn *fn,
			  void *data);

/* Revokes a ticket: it can no longer be redeemed, and releases its tensor.
 * -ENOENT: the ticket is unknown, used up, or expired. -EPERM: a process of
 * another user made it, and the caller is no administrator. */
FSDP_API int fsdp_ticket_revoke(struct fsdp_client *client, uint64_t id);

/* Redeems tickets for held tensors. -ENOENT: a ticket is unknown, used up, or
 * expired. For a tensor on a device, call fsdp_tensor_wait() next. */
FSDP_API int fsdp_ticket_redeem(struct fsdp_client *client,
				const struct fsdp_ticket *tickets, size_t n,
				struct fsdp_tensor **ret);

/*
 * Does the same, and makes the tensors writable. It is for the processes of one
 * job that write different parts of one tensor; they must order their writes
 * themselves. Memory is mapped in whole chunks: after this call, a stray store
 * into other tensors of these chunks does not fault, and the chunks are not
 * mapped in forked children. -EACCES: this process may not write the memory
 * (struct fsdp_access). -EPERM: a tensor has a name, and its readers rely on
 * its contents. A call that fails with one of these still counts as a use of
 * each ticket.
 */
FSDP_API int fsdp_ticket_redeem_mut(struct fsdp_client *client,
				    const struct fsdp_ticket *tickets, size_t n,
				    struct fsdp_tensor **ret);

/* --- bundles ------------------------------------------------------------- */

enum fsdp_bundle_flags {
	/* One process at a time stages the bundle: see fsdp_bundle_begin(). */
	FSDP_ONCE = 16,
};

struct fsdp_bundle_options {
	size_t struct_size;
	struct fsdp_access access;
	/* The sum of the sizes of all members in bytes, each rounded up to a
	 * multiple of 64, on a device of 512; 0: unknown. */
	uint64_t size_hint;
	/* FSDP_REPLACE, FSDP_MUST_EXIST, FSDP_TIED, FSDP_ONCE */
	uint32_t flags;
	uint64_t ttl_ms; /* the bundle is removed after this; 0: never */
	struct fsdp_device device; /* of all members; all 0: host memory */
	int32_t timeout_ms;        /* with FSDP_ONCE */
	/* With FSDP_REPLACE: the number of versions, including this one, that
	 * fsdp_get_options.version can get; older versions are dropped. At most
	 * 64; 0 means 1. */
	uint32_t n_kept;
};

/*
 * Begins a bundle: a set of tensors that are published and replaced as one,
 * such as a model. `name` is the prefix of its members and ends in '/'. The
 * bundle becomes visible with fsdp_bundle_commit(). -EEXIST: the bundle exists,
 * and FSDP_REPLACE was not given. `options` may be NULL.
 *
 * With FSDP_ONCE, one of many processes loads a model, and the others use it.
 * The first call succeeds, and the others wait, up to timeout_ms. When the
 * bundle is committed, they return -EEXIST; call fsdp_bundle_get() then. If it
 * is aborted or its process dies, one of the others succeeds. -EBUSY: another
 * process stages the bundle, and timeout_ms is 0. -ETIMEDOUT: it still does
 * after timeout_ms.
 */
FSDP_API int fsdp_bundle_begin(struct fsdp_client *client, const char *name,
			       const struct fsdp_bundle_options *options,
			       struct fsdp_bundle **ret);

/*
 * Allocates members; `names` are full names that begin with the bundle's name.
 * The caller owns the handles, and must write the tensors before the commit.
 */
FSDP_API int fsdp_bundle_alloc(struct fsdp_bundle *bundle,
			       const char *const *names,
			       const struct fsdp_spec *specs, size_t n,
			       struct fsdp_tensor **ret);

/*
 * Commits a bundle: unmaps the members' memory in this process, has the broker
 * seal it against changes for ever, makes all names refer to it at once, and
 * maps it again, read-only, at the same addresses. `*ret_version` is the
 * version of the bundle; `ret_version` may be NULL. Frees `bundle` on success.
 * -EBUSY: a process still maps the memory writable (the message names it); try
 * again or abort. -EINTR, or an error of the connection: the broker may have
 * committed the bundle nevertheless; then the members are read-only, and
 * fsdp_bundle_abort() frees only the handle.
 *
 * Device memory cannot be sealed. For a bundle on a device, all work on the
 * members must be finished before the commit; this process's mapping stays
 * writable, and libfsdp in other processes maps the memory read-only. After
 * an error that is not the broker's the members count as read-only in any case.
 */
FSDP_API int fsdp_bundle_commit(struct fsdp_bundle *bundle,
				uint64_t *ret_version);

/* Discards the bundle before it is visible, and frees its memory. If the broker
 * cannot be reached, it does so when a later call reaches it. `bundle` may be
 * NULL. */
FSDP_API void fsdp_bundle_abort(struct fsdp_bundle *bundle);

/*
 * Gets and holds all members of a bundle in one request. `*ret` is an array of
 * `*ret_n` handles, in the order in which they were allocated; free each by
 * fsdp_free(), and the array by free().
 */
FSDP_API int fsdp_bundle_get(struct fsdp_client *client, const char *name,
			     const struct fsdp_get_options *options,
			     struct fsdp_tensor ***ret, size_t *ret_n);

/* These functions do the same in an event loop: see fsdp_get_begin() and
 * fsdp_get_end(). fsdp_get_cancel() cancels the get. */
FSDP_API int fsdp_bundle_get_begin(struct fsdp_client *client, const char *name,
				   const struct fsdp_get_options *options,
				   struct fsdp_pending **ret);
FSDP_API int fsdp_bundle_get_end(struct fsdp_pending *pending,
				 struct fsdp_tensor ***ret, size_t *ret_n);

#ifdef __cplusplus
}
#endif

#include "fsdp_admin.h"
#include "fsdp_channel.h"
#include "fsdp_collective.h"
#include "fsdp_comm.h"
#include "fsdp_inspect.h"
#include "fsdp_share.h"
