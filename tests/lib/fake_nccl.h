/*
 * Counters that the fakes offer to tests (tests/fakes/nccl/api.h,
 * tests/fakes/cuda/fake.h). The fakes must be loaded.
 */
#pragma once
#include "cuda/driver_api.h"

void count_registrations(unsigned int *ret_made, unsigned int *ret_left);
int stream_priority(CUstream stream);
