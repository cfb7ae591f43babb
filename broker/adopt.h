/*
 * Adoption: at its start the broker takes over the memory that the fd store
 * keeps for it.
 */
#pragma once

struct broker;
struct error;

/*
 * Open the catalog and the state table, and take over the memory and sessions
 * of an earlier broker. If that is not possible, the broker starts empty and
 * logs the cause. If memory or descriptors are short (error_is_short()), or the
 * earlier broker was of a version with another layout (-EPROTO), this fails,
 * and the adoption is left to the next start.
 */
int broker_adopt(struct broker *broker, struct error *err);
