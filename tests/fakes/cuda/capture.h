/*
 * Checks for captures of a stream into a graph. While a capture is under way, a
 * call is forbidden if it could belong to the capture or not, in all threads
 * that have not declared their calls as independent
 * (cuThreadExchangeStreamCaptureMode()). The fake has no graphs: a test says
 * when a capture begins and ends, one at a time (fake.h).
 */
#pragma once
#include "cuda/driver_symbols.h"
#include "tests/fakes/cuda/call.h"

/* Returns an error if this thread must not make the call now. The capture then
 * becomes invalid. */
CUresult capture_check(enum call call);

CUstreamCaptureStatus capture_status(CUstream stream);
