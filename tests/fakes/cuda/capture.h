/*
 * Checks for captures of a stream into a graph. A capture forbids calls that
 * could belong to it or not, by all threads that have not declared theirs as
 * independent (cuThreadExchangeStreamCaptureMode()). The fake has no graphs: a
 * test says when a capture begins and ends, one at a time (fake.h).
 */
#pragma once
#include "cuda/driver_symbols.h"
#include "tests/fakes/cuda/call.h"

/* May this thread make the call now? If not, the capture becomes invalid. */
CUresult capture_check(enum call call);

CUstreamCaptureStatus capture_status(CUstream stream);
