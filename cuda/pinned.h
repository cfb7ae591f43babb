/*
 * Pinned pages are the program's own host memory that a device copies from and
 * to in stream order, while the host continues.
 */
#pragma once
#include "cuda/device.h"

struct pinned {
	const struct device *device; /* NULL if nothing is pinned */
	void *pages;
};

#define PINNED_NULL ((struct pinned){.device = NULL})

/* Pins whole pages, which no other pinned range may overlap, for all devices of
 * the process. `device` is any one of them. */
int pinned_open(const struct device *device, void *pages, uint64_t size,
		struct pinned *ret, struct error *err);
/* Unpins the pages. No copy may be under way. It does nothing for PINNED_NULL,
 * to which it resets `pinned`. */
void pinned_close(struct pinned *pinned);
