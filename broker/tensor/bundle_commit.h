/*
 * Staging a version of a bundle, and showing it.
 */
#pragma once
#include <stdint.h>

struct store;
struct error;
struct holdings;
struct bundle_begin_request;

/* Results of bundle_begin() that are no errors. */
enum { BUNDLE_BEGUN = 0, BUNDLE_IS_LOADING = 1 };

/*
 * The caller has looked up the device. BUNDLE_IS_LOADING: with PUBLISH_ONCE,
 * and a session stages this bundle with that flag; park, to be woken by the
 * bundle's name when it has been committed or has ended.
 */
int bundle_begin(struct store *store, struct holdings *holdings,
		 const struct bundle_begin_request *request, uint64_t *ret_id,
		 struct error *err);

/*
 * Seal the memory, switch the names, and release the old version. For memory on
 * a device, the loader states with the commit that its writing is finished:
 * members have no ready fence. POOL_WAIT: the memory is being sealed and the
 * manifest made; park, to be woken by wake_uid() of the session's user,
 * and ask again. Until it is committed, the version stays staged, and may be
 * aborted or get more members.
 */
int bundle_commit(struct store *store, struct holdings *holdings,
		  uint32_t bundle, uint64_t *ret_version, struct error *err);

/* After a restart (and pools_adopt()): set deadlines and charge accounts again.
 * Manifests are made again when they are needed. */
int bundle_adopt_all(struct store *store, struct error *err);
