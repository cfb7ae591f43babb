/*
 * Administration of the broker. fsdp.h includes this header and describes the
 * conventions.
 *
 * All users may call fsdp_config(). The other functions are for administrators
 * (root, the broker's own user and members of admin_group); for other users
 * they return -EPERM.
 */
#pragma once
#include "fsdp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- memory and sessions ------------------------------------------------- */

/* Frees now the tensors that processes have released, as the broker does when
 * memory is short. `*ret_n` is the number of tensors that were freed,
 * `*ret_bytes` the size of their memory. */
FSDP_API int fsdp_collect(struct fsdp_client *client, uint64_t *ret_n,
			  uint64_t *ret_bytes);

/* Returns free memory to the kernel without waiting for warm_ms (see
 * fsdpd.conf(5)). A thread of the broker does so soon after the call. `*ret_n`
 * is the number of chunks with such memory, and `*ret_bytes` is how much they
 * return at most. */
FSDP_API int fsdp_trim(struct fsdp_client *client, uint64_t *ret_n,
		       uint64_t *ret_bytes);

/* Evicts evictable tensors without a hold, on a device or (NULL) in host
 * memory, until `size` bytes have been freed or no more can be evicted.
 * `*ret_n` is the number of tensors that were evicted, `*ret_bytes` the size of
 * their memory. */
FSDP_API int fsdp_evict(struct fsdp_client *client,
			const struct fsdp_device *device, uint64_t size,
			uint64_t *ret_n, uint64_t *ret_bytes);

/*
 * Makes the broker refuse new sessions, except those of administrators, and
 * waits up to `timeout_ms` until all other sessions have ended. -ETIMEDOUT:
 * some have not ended (the message names a process); new ones stay refused.
 * -ECANCELED: fsdp_undrain() was called meanwhile. A broker that is restarted
 * still refuses new sessions, until fsdp_undrain() is called or its memory is
 * lost by a reboot or a stop.
 */
FSDP_API int fsdp_drain(struct fsdp_client *client, int32_t timeout_ms);
FSDP_API int fsdp_undrain(struct fsdp_client *client);

enum fsdp_log_level {
	FSDP_LOG_ERROR = 3,
	FSDP_LOG_WARNING = 4,
	FSDP_LOG_INFO = 6, /* all messages */
};
/* Sets the lowest level of messages that the broker logs, until it is
 * restarted. */
FSDP_API int fsdp_log_level(struct fsdp_client *client,
			    enum fsdp_log_level level);

/* --- configuration ------------------------------------------------------- */

/* A key of the broker's configuration, or an entry of [prefixes]. The texts are
 * valid during the call. */
struct fsdp_config_entry {
	size_t struct_size;
	const char *section, *name;
	const char *value;  /* as it is written in a configuration file */
	const char *origin; /* "default", FILE:LINE, or "--set" */
};

/* Returns 0 to continue; any other value ends the list and is returned. */
typedef int fsdp_config_fn(const struct fsdp_config_entry *entry, void *data);

/* Calls `fn` for each key of the configuration. */
FSDP_API int fsdp_config(struct fsdp_client *client, fsdp_config_fn *fn,
			 void *data);

#define FSDP_RELOAD_REPORT_SIZE 4096

/*
 * Makes the broker read its configuration again, and waits until it has done
 * so. `ret` is a buffer of `size` bytes, and receives a text with one line for
 * each value that has changed; a longer text is cut. -EINVAL: a file is
 * invalid; or another error: a file cannot be read. In both cases the
 * configuration has not changed.
 */
FSDP_API int fsdp_reload(struct fsdp_client *client, char *ret, size_t size);

#ifdef __cplusplus
}
#endif
