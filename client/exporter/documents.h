/*
 * The documents that the exporter serves, as text.
 *
 * Lists are bounded: tensors, sessions and tensors in limbo beyond the limit
 * are only counted. docs/metrics.md describes /status.json.
 */
#pragma once
#include <stddef.h>

struct fsdp_client;
struct history;
struct snapshot;

/* The caller must free the returned texts. NULL: there is no memory. */

/* Write the metrics of a snapshot; NULL: there is no broker. */
char *documents_metrics(const struct snapshot *snapshot, size_t *ret_size);

/* Write /status.json. This also requests the lists of sessions, channels and
 * tensors. If the broker fails, `*ret_code` is negative and fsdp_error()
 * returns the cause. */
char *documents_status(struct fsdp_client *client,
		       const struct snapshot *snapshot,
		       const struct history *history, int *ret_code);
/* Write /status.json when there is no broker; `cause` says why. `history` may
 * be NULL. */
char *documents_away(const char *cause, const struct history *history);
