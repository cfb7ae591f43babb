/*
 * What a capture of a stream into a graph forbids: calls that could belong to
 * it or not, of threads that have not said that theirs do not
 * (cuThreadExchangeStreamCaptureMode()). Graphs themselves there are none: a
 * test says when a capture begins and ends, one at a time (fake.h).
 */
#pragma once
#include "cuda/driver_symbols.h"
#include "tests/fakes/cuda/call.h"

/* May this thread make the call now? If not, the capture is lost. */
CUresult capture_check(enum call call);

CUstreamCaptureStatus capture_status(CUstream stream);
