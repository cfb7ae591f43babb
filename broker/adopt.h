/*
 * A start is an adoption: the broker takes over the memory that the fd store
 * keeps for it.
 */
#pragma once

struct broker;
struct error;

/*
 * Open the catalog and the state table, and take over what an earlier broker
 * left. If that cannot be adopted, the broker starts empty and logs the cause.
 * If memory or descriptors are short (error_is_short()), the adoption is left
 * to the next start, and the call fails.
 */
int broker_adopt(struct broker *broker, struct error *err);
