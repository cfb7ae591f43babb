/*
 * What administrators ask of the broker. fsdp.h includes this header and
 * describes the conventions.
 *
 * Everything but fsdp_config() is for root, the broker's own user and members
 * of admin_group; others get -EPERM.
 */
#pragma once
#include "fsdp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- memory and sessions ------------------------------------------------- */

/* Frees what processes have released, now, as the broker does when memory is
 * short. `*ret_n`: tensors freed; `*ret_bytes`: of memory. */
FSDP_API int fsdp_collect(struct fsdp_client *client, uint64_t *ret_n,
			  uint64_t *ret_bytes);

/* Returns free memory to the kernel without waiting for warm_ms. `*ret_n`: from
 * how many chunks; `*ret_bytes`: at most. A thread of the broker does it soon
 * after the call. */
FSDP_API int fsdp_trim(struct fsdp_client *client, uint64_t *ret_n,
		       uint64_t *ret_bytes);

/* Evicts evictable tensors that nobody holds, on a device or (NULL) in host
 * memory, until `size` bytes are free or no more can be evicted. */
FSDP_API int fsdp_evict(struct fsdp_client *client,
			const struct fsdp_device *device, uint64_t size,
			uint64_t *ret_n, uint64_t *ret_bytes);

/*
 * Has the broker refuse new sessions, except those of administrators, and waits
 * up to `timeout_ms` until all others have ended. -ETIMEDOUT: some have not;
 * new ones stay refused. A restart of the broker ends it, and so does
 * fsdp_undrain().
 */
FSDP_API int fsdp_drain(struct fsdp_client *client, int32_t timeout_ms);
FSDP_API int fsdp_undrain(struct fsdp_client *client);

enum fsdp_log_level {
	FSDP_LOG_ERROR = 3,
	FSDP_LOG_WARNING = 4,
	FSDP_LOG_INFO = 6, /* all lines */
};
/* Sets what the broker logs, until it is restarted. */
FSDP_API int fsdp_log_level(struct fsdp_client *client,
			    enum fsdp_log_level level);

/* --- configuration ------------------------------------------------------- */

/* A key of the broker's configuration, or an entry of [prefixes]. The texts are
 * valid during the call. */
struct fsdp_config_entry {
	size_t struct_size;
	const char *section, *name;
	const char *value;  /* as in a file */
	const char *origin; /* "default", FILE:LINE, or "--set" */
};

/* Returns 0 to continue; anything else ends the list and is returned. */
typedef int fsdp_config_fn(const struct fsdp_config_entry *entry, void *data);

FSDP_API int fsdp_config(struct fsdp_client *client, fsdp_config_fn *fn,
			 void *data);

#define FSDP_RELOAD_REPORT_SIZE 4096

/*
 * Has the broker read its configuration again, and returns when it has. `ret`
 * gets what changed, one line for each value, cut to `size` bytes. -EINVAL, or
 * what opening a file gives: a file is wrong, and nothing has changed.
 */
FSDP_API int fsdp_reload(struct fsdp_client *client, char *ret, size_t size);

#ifdef __cplusplus
}
#endif
