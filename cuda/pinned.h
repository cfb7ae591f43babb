/*
 * Pinned pages: the program's own host memory that a device copies from and to
 * in stream order, while the host continues.
 */
#pragma once
#include "cuda/device.h"

struct pinned {
	const struct device *device; /* NULL: nothing is */
	void *pages;
};

#define PINNED_NULL ((struct pinned){.device = NULL})

/* Pin whole pages, which no other range that is pinned has part in, for all
 * devices of the process. `device`: one of them. */
int pinned_open(const struct device *device, void *pages, uint64_t size,
		struct pinned *ret, struct error *err);
/* No copy is under way. No-op for PINNED_NULL, which it leaves. */
void pinned_close(struct pinned *pinned);
