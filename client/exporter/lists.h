/*
 * Sessions, users of channels, and tensors of the broker, as JSON objects with
 * the total number and a bounded array.
 */
#pragma once
#include <jansson.h>

struct fsdp_client;
struct snapshot;

#define LISTS_SESSIONS 200 /* the sessions with the most memory */
#define LISTS_CHANNELS 200 /* users of channels */
#define LISTS_TENSORS  512
#define LISTS_LIMBO    64
#define LISTS_HOLDERS  64 /* tensors whose holders are shown */

/* Negative: fsdp_error() returns the cause. */
int lists_sessions(struct fsdp_client *client, json_t **ret);
int lists_channels(struct fsdp_client *client, json_t **ret);
int lists_tensors(struct fsdp_client *client, const struct snapshot *snapshot,
		  json_t **ret);
int lists_limbo(struct fsdp_client *client, const struct snapshot *snapshot,
		json_t **ret);
