/*
 * First components of names, and who owns them.
 *
 * The first user of a first component owns it, from the first name or bundle
 * until `prefix_grace_ms` after the last one has gone, so that a name between
 * two versions keeps its owner. It is charged to the owner's account. The
 * configuration ([prefixes]) gives some an owner for ever, who is charged
 * nothing. Shown names (outside bundles) and shown bundles are counted in the
 * catalog, in the transactions that show and end them.
 */
#pragma once
#include "broker/catalog.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct broker;
struct error;

/*
 * May `uid` use names that begin like this? Root may use any. prefix_check()
 * changes nothing; prefix_claim() makes it so (after a successful check; false:
 * the catalog is full). A claim that no name follows ends like every other.
 * prefix_unclaim() undoes one of this very request.
 */
int prefix_check(struct broker *broker, const char *name, uint32_t uid,
		 struct error *err);
bool prefix_claim(struct broker *broker, const char *name, uint32_t uid);
void prefix_unclaim(struct broker *broker, const char *name);

/* Find the owner of the first component; false if nobody owns it. */
bool prefix_owner(const struct broker *broker, const char *name,
		  uint32_t *ret_uid);

/* A name (or, with a '/' at its end, a bundle) of `size` bytes, whose first
 * component was claimed, is shown from now on, or no more. */
void prefix_use(struct broker *broker, const char *name, size_t size);
void prefix_end_use(struct broker *broker, const char *name, size_t size);

/* The record of this first component, or 0. */
uint32_t prefix_find(const struct broker *broker, const char *name,
		     size_t size);
/* Does the configuration say whose it is? */
bool prefix_is_configured(const struct broker *broker,
			  const struct prefix_record *record);

/* How long it still has its owner if nothing comes; 0: it is used. */
uint64_t prefix_left_ms(const struct broker *broker,
			const struct prefix_record *record);

/* After a restart: owners are charged, and what is not used ends in time. */
int prefix_adopt_all(struct broker *broker, struct error *err);
