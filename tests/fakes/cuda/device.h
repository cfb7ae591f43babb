/*
 * Devices: how many there are on the machine, which of them this process sees,
 * and what they can do.
 *
 * A device has a number on the machine, from which its UUID is made, and in
 * each process that sees it an ordinal.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include "tests/fakes/cuda/settings.h"
#include <stdbool.h>

#define DEVICE_GRANULARITY (UINT64_C(2) << 20)

/* Find those that CUDA_VISIBLE_DEVICES leaves; cuInit(). */
CUresult device_open(void);

int device_count(void); /* that this process sees */
bool device_is_valid(CUdevice ordinal);
unsigned int device_number(CUdevice ordinal);
/* -1: this process does not see it. */
CUdevice device_ordinal(unsigned int number);
bool device_has(enum feature feature);

/* Is it lost? Then what calls say: UNKNOWN, or the number that the file has. */
CUresult device_check(CUdevice ordinal);
/* It is lost, for all processes and for ever. */
void device_lose(CUdevice ordinal);
