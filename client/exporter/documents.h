/*
 * What the exporter serves of the broker, as text.
 *
 * Lists are bounded: tensors, sessions and tensors in limbo beyond the limit
 * are only counted. docs/metrics.md describes /status.json.
 */
#pragma once
#include <stddef.h>

struct fsdp_client;
struct history;
struct snapshot;

/* Texts are freed by the caller. NULL: no memory. */

/* Of the snapshot; NULL: the broker is away. */
char *documents_metrics(const struct snapshot *snapshot, size_t *ret_size);

/* Asks the broker for tensors and sessions, too. On failure of the broker,
 * `*ret_code` is negative and fsdp_error() has the sentence. */
char *documents_status(struct fsdp_client *client,
		       const struct snapshot *snapshot,
		       const struct history *history, int *ret_code);
/* The broker is away; `cause` says why. `history` may be NULL. */
char *documents_away(const char *cause, const struct history *history);
