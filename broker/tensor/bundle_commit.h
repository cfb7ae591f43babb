/*
 * Bundles: staging a version, and committing it.
 */
#pragma once
#include <stdint.h>

struct store;
struct error;
struct holdings;
struct bundle_begin_request;

/* Results of bundle_begin() that are not errors. */
enum { BUNDLE_BEGUN = 0, BUNDLE_IS_LOADING = 1 };

/*
 * Stages a new version of a bundle. The caller has looked up the device.
 * BUNDLE_IS_LOADING: the request has PUBLISH_ONCE, and a session stages this
 * bundle with that flag; the caller parks the request, which is woken by the
 * bundle's name when that version has been committed or has ended.
 */
int bundle_begin(struct store *store, struct holdings *holdings,
		 const struct bundle_begin_request *request, uint64_t *ret_id,
		 struct error *err);

/*
 * Seals the memory, switches the names, and releases the old version. For
 * memory on a device, the loader states with the commit that its writing is
 * finished: members have no ready fence. POOL_WAIT: the memory is being sealed
 * or the manifest is being made; the caller parks the request, which is woken
 * by wake_uid() of the session's user, and calls again. Until the commit the
 * version stays staged, and may be aborted or get more members.
 */
int bundle_commit(struct store *store, struct holdings *holdings,
		  uint32_t bundle, uint64_t *ret_version, struct error *err);

/* Sets deadlines and charges accounts again after a restart. Call it after
 * pools_adopt(). Manifests are made again when they are needed. */
int bundle_adopt_all(struct store *store, struct error *err);
