/*
 * Devices: the number of them on the machine, those that this process sees, and
 * their capabilities. A device has a number on the machine, from which its UUID
 * is made, and in each process that sees it an ordinal.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include "tests/fakes/cuda/settings.h"
#include <stdbool.h>

#define DEVICE_GRANULARITY (UINT64_C(2) << 20)

/* Finds the devices that CUDA_VISIBLE_DEVICES allows, for cuInit(). */
CUresult device_open(void);

int device_count(void); /* number of devices that this process sees */
bool device_is_valid(CUdevice ordinal);
unsigned int device_number(CUdevice ordinal);
/* Returns the ordinal, or -1 if this process does not see the device. */
CUdevice device_ordinal(unsigned int number);
bool device_has(enum feature feature);

/* Returns the error of all calls if the device is lost: UNKNOWN, or the number
 * in the file. */
CUresult device_check(CUdevice ordinal);
/* Marks the device as lost forever, for all processes. */
void device_lose(CUdevice ordinal);
